// Runs the portable forward and backward kernels and the kernel that summarizes masks on the host: every line of them
// except the instructions in kernels/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kernel_emulator {

// name: of the kernel's function. config: the ints of its config. CTAs run one after the other. Returns "" or what went
// wrong: a config that this program does not contain, or writes beyond the shared memory of the launch.
std::string run_dense_kernel(const char* name, const int* config, size_t ints, const void* params, int64_t ctas,
                             int threads, size_t shared_bytes, uint64_t seed);

}  // namespace kernel_emulator
