// Timing, and tables to print it in. Contestants take turns, and the best time of each counts: what the code can do when
// the machine lets it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "bench/shared/alternate.h"

namespace cuflash::bench {

// Seconds of the best turn of each.
std::vector<double> best_times(const std::vector<Run>& contestants, double seconds);

// One row of a Markdown table; the first one of a table also prints the line below it.
void print_header(std::initializer_list<const char*> cells);
void print_row(const std::vector<std::string>& cells);

std::string text(const char* format, double value);

}  // namespace cuflash::bench
