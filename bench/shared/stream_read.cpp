// Measures how fast this machine reads memory, which is the ceiling of a decode step.
#include "bench/shared/stream_read.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

double stream_read_seconds(const void* data, size_t bytes, int threads) {
  using Clock = std::chrono::steady_clock;
  const size_t words = bytes / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::vector<Clock::time_point> begin(static_cast<size_t>(threads)), end(begin);
  std::atomic<int> waiting = threads;
  std::atomic<uint64_t> sums = 0;  // keeps the compiler from removing the reads
  const auto read = [&](size_t share) {
    const uint64_t* from = static_cast<const uint64_t*>(data) + share * words;
    for (--waiting; waiting > 0;) {}
    begin[share] = Clock::now();
    uint64_t sum[16] = {};  // independent, so that only memory limits the loop
    for (size_t n = 0; n + 16 <= words; n += 16)
      for (size_t k = 0; k < 16; ++k) sum[k] ^= from[n + k];
    for (const uint64_t part : sum) sums ^= part;
    end[share] = Clock::now();
  };
  std::vector<std::thread> others;
  for (size_t n = 1; n < begin.size(); ++n) others.emplace_back(read, n);
  read(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                       *std::min_element(begin.begin(), begin.end()))
      .count();
}
