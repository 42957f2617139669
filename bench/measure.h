// Timing, and tables to print it in. Contestants alternate, and the best time of each counts, which is the least disturbed.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "bench/shared/alternate.h"

namespace cuflash::bench {

// The best time of each, in seconds.
std::vector<double> best_times(const std::vector<Run>& contestants, double seconds);

// One row of a Markdown table; the header also prints the line below it.
void print_header(std::initializer_list<const char*> cells);
void print_row(const std::vector<std::string>& cells);

std::string text(const char* format, double value);

}  // namespace cuflash::bench
