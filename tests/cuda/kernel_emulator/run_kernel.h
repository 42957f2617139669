// Runs one of a table of kernels, for files that compile kernels for the host: they include it after the kernels.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/kernel_emulator/kv_kernel.h"

namespace kernel_emulator {

struct EmulatedKernel {
  std::string name, config;  // as the program writes them
  void (*run)(const void* params);
};

// A config as the program writes it.
template <class Config>
std::string text_of(const Config& c) {
  int ints[sizeof c / sizeof(int)];
  std::memcpy(ints, &c, sizeof c);
  std::string text = "{Element{" + std::to_string(ints[0]) + "}";
  for (size_t n = 1; n < std::size(ints); ++n) text += ", " + std::to_string(ints[n]);
  return text + "}";
}

inline void set_cta(const Grid& grid, int64_t n) {
  gridDim = {grid.x, grid.y, grid.z};
  blockIdx = {static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
              static_cast<unsigned>(n / grid.x / grid.y)};
}

inline std::string overrun_of(std::span<const unsigned char> memory, size_t shared_bytes) {
  for (const unsigned char byte : memory.subspan(shared_bytes))
    if (byte != 0xff) return "the kernel writes beyond the shared memory of its launch";
  return "";
}

// CTAs one after the other, in an order given by the seed. Shared memory is NaN before every CTA, and must stay so beyond
// the size of the launch.
inline std::string run_ctas(std::span<unsigned char> memory, const Grid& grid, int threads, size_t shared_bytes,
                            uint64_t seed, const std::function<void()>& body) {
  std::vector<int64_t> order(static_cast<size_t>(grid.ctas()));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  for (const int64_t n : order) {
    std::memset(memory.data(), 0xff, memory.size());
    set_cta(grid, n);
    run_threads(threads, random(), body);
    if (std::string fault = overrun_of(memory, shared_bytes); !fault.empty()) return fault;
  }
  return "";
}

// The kernel that a program names.
inline std::string run_kernel(std::span<const EmulatedKernel> kernels, std::span<unsigned char> memory,
                              const std::string& program, const void* params, const Grid& grid, int threads,
                              size_t shared_bytes, uint64_t seed) {
  for (const EmulatedKernel& kernel : kernels)
    if (program.find(kernel.name) != std::string::npos && program.find(kernel.config) != std::string::npos)
      return run_ctas(memory, grid, threads, shared_bytes, seed, [&] { kernel.run(params); });
  return "this program does not contain the kernel " + program;
}

}  // namespace kernel_emulator
