#include "bench/measure.h"

#include <algorithm>
#include <cstdio>

namespace cuflash::bench {

std::vector<double> best_times(const std::vector<Run>& contestants, double seconds) {
  std::vector<double> best;
  for (const auto& times : alternate_times(contestants, seconds))
    best.push_back(*std::min_element(times.begin(), times.end()));
  return best;
}

void print_row(const std::vector<std::string>& cells) {
  for (const std::string& cell : cells) std::printf("| %s ", cell.c_str());
  std::printf("|\n");
  std::fflush(stdout);
}

void print_header(std::initializer_list<const char*> cells) {
  print_row({cells.begin(), cells.end()});
  print_row(std::vector<std::string>(cells.size(), "---"));
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

}  // namespace cuflash::bench
