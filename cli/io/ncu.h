// NVIDIA's profiler, run on a command of this program: what its kernels really moved.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cuflash::cli {

// Bytes of all kernels of a command.
struct Measured {
  double dram_read = 0, dram_written = 0;
  double l2 = 0;  // asked of L2, reads and writes
};

// From the raw page of ncu as CSV. Throws std::runtime_error, in a sentence, for anything else.
Measured measured_in(std::string_view csv);

// Runs this program with these arguments under ncu. Throws std::runtime_error where it is not there or fails.
Measured measure_with_ncu(const std::vector<std::string>& arguments);

}  // namespace cuflash::cli
