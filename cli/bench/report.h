// Benchmark results as tables, and the comparison of two result files.
#pragma once

#include "cli/bench/file.h"
#include "cli/terminal/table.h"

namespace cuflash::cli {

Table bench_table(const BenchFile& file);
std::string bench_markdown(const BenchFile& file);

struct Comparison {
  Table table;
  size_t matched = 0, slower = 0, missing = 0;  // points; missing: of the old ones
};
// A point of cuflash is slower if its median is larger by more than the tolerance and its interquartile range lies above the
// old one. Other contestants are shown but never count as slower, since they are not under test.
Comparison compare(const BenchFile& old_file, const BenchFile& new_file, double tolerance);

}  // namespace cuflash::cli
