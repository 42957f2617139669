// Results of measuring as tables, and two files of them against each other.
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
// A point of cuflash is slower where its median is, by more than the tolerance, and all of the middle half of its times
// lies above that of the old ones. Other contestants are shown, and never slower: they are not what is tested.
Comparison compare(const BenchFile& old_file, const BenchFile& new_file, double tolerance);

}  // namespace cuflash::cli
