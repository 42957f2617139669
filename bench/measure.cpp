#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
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

std::vector<double> best_times(const std::vector<Run>& contestants, double seconds) {
  constexpr double kTurn = 1e-3;
  std::vector<double> best;
  std::vector<int64_t> repetitions;
  for (const Run& run : contestants) {
    run();  // pages, threads, caches
    best.push_back(time_of(run, 1));
    repetitions.push_back(std::clamp<int64_t>(static_cast<int64_t>(kTurn / std::max(best.back(), 1e-9)), 1, 10000));
  }
  const auto start = Clock::now();
  for (int turn = 0; turn < 3 || seconds_since(start) < seconds; ++turn) {
    for (size_t n = 0; n < contestants.size(); ++n) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));  // the threads of the one before have gone to sleep
      contestants[n]();
      best[n] = std::min(best[n], time_of(contestants[n], repetitions[n]));
    }
  }
  return best;
}

void print_row(const std::vector<std::string>& cells) {
  for (const std::string& cell : cells) std::printf("| %s ", cell.c_str());
  std::printf("|\n");
  std::fflush(stdout);
}

void print_header(std::initializer_list<const char*> cells) {
  print_row({cells.begin(), cells.end()});
  print_row(std::vector<std::string>(cells.size(), "---"));
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

}  // namespace cuflash::bench
