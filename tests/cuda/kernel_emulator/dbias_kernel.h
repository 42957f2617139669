// Runs the dBias kernel of the sm90 backward family on the host, and the kernel that prepares its row statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda/kernel_emulator/kv_kernel.h"

namespace kernel_emulator {

// Like run_forward_kernel, with Sm90BackwardParams, or BackwardParams for the prepare kernel.
std::string run_dbias_kernel(const char* program, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed);

}  // namespace kernel_emulator
