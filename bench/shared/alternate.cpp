#include "bench/shared/alternate.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace cuflash::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double time_of(const Run& run, int64_t repetitions) {
  const auto start = Clock::now();
  for (int64_t n = 0; n < repetitions; ++n) run();
  return seconds_since(start) / static_cast<double>(repetitions);
}

}  // namespace

std::vector<std::vector<double>> alternate_times(const std::vector<Run>& contestants, double seconds) {
  constexpr double kTurn = 1e-3, kLong = 0.1;
  std::vector<double> first;
  std::vector<int64_t> repetitions;
  for (const Run& run : contestants) {
    run();  // warm up pages, threads and caches
    first.push_back(time_of(run, 1));
    repetitions.push_back(std::clamp<int64_t>(static_cast<int64_t>(kTurn / std::max(first.back(), 1e-9)), 1, 10000));
  }
  std::vector<std::vector<double>> times(contestants.size());
  const auto start = Clock::now();
  for (int turn = 0; turn < 3 || seconds_since(start) < seconds; ++turn) {
    for (size_t n = 0; n < contestants.size(); ++n) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));  // let the previous contestant's threads go to sleep
      if (first[n] < kLong) contestants[n]();
      times[n].push_back(time_of(contestants[n], repetitions[n]));
    }
  }
  return times;
}

}  // namespace cuflash::bench
