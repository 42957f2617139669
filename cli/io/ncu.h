// Runs NVIDIA's profiler on a command of this program to measure what its kernels moved.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cuflash::cli {

// Bytes of all kernels of a command.
struct Measured {
  double dram_read = 0, dram_written = 0;
  double l2 = 0;  // L2 requests, reads and writes
};

// Parses ncu's raw page as CSV. Throws std::runtime_error with a sentence for anything else.
Measured measured_in(std::string_view csv);

// Runs this program with these arguments under ncu. Throws std::runtime_error if ncu is missing or fails.
Measured measure_with_ncu(const std::vector<std::string>& arguments);

}  // namespace cuflash::cli
