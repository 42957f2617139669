// Runs kernels of the sm90 forward family on the host: every line of them except the instructions in kernels/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda/kernel_emulator/kv_kernel.h"

namespace kernel_emulator {

// program: the source of a launch, which names the kernel and its config. params: a Sm90ForwardParams. CTAs run one after
// the other in an order given by the seed. Returns "" or what went wrong: a kernel that this program does not contain, or
// writes beyond the shared memory of the launch.
std::string run_forward_kernel(const char* program, const void* params, const Grid& grid, int threads,
                               size_t shared_bytes, uint64_t seed);

}  // namespace kernel_emulator
