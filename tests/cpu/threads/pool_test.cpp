// The thread pool alone: every index runs exactly once, whether its workers spin, sleep, or wake up too late.
#include "cpu/threads/pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace cuflash::cpu {
namespace {

constexpr int64_t kMax = 9;

struct Job {
  std::array<std::atomic<int>, kMax> runs{};
  std::chrono::microseconds length{0};

  static void body(void* self, int64_t index) {
    auto& job = *static_cast<Job*>(self);
    std::this_thread::sleep_for(job.length);
    ++job.runs[static_cast<size_t>(index)];
  }
  void expect_once(int64_t n) const {
    for (int64_t i = 0; i < kMax; ++i) EXPECT_EQ(runs[static_cast<size_t>(i)], i < n ? 1 : 0) << i << " of " << n;
  }
};

void run(int64_t n, std::chrono::microseconds length = {}) {
  Job job{.length = length};
  Pool::instance().parallel_for(n, Job::body, &job);
  job.expect_once(n);
}

TEST(Pool, RunsEveryIndexOnce) {
  for (int64_t n = 0; n <= kMax; ++n) run(n);
  for (int repeat = 0; repeat < 3000; ++repeat) run(1 + repeat % kMax);
}

TEST(Pool, RunsEveryIndexOnceAfterItsWorkersFellAsleep) {
  for (int repeat = 0; repeat < 60; ++repeat) {
    std::this_thread::sleep_for(std::chrono::microseconds(repeat * 7));  // around the moment when they fall asleep
    run(1 + repeat % kMax);
  }
}

TEST(Pool, ThreadsShareTheIndices) {
  const auto start = std::chrono::steady_clock::now();
  run(kMax, std::chrono::milliseconds(50));
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 0.05 * kMax / 2);
}

// Waking a thread narrows the cores that it may use, for that moment only.
TEST(Pool, WorkersKeepTheirCores) {
  struct Seen {
    cpu_set_t expected{};
    std::atomic<int> different = 0;
    static void body(void* self, int64_t) {
      auto& seen = *static_cast<Seen*>(self);
      cpu_set_t cores;
      EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
      seen.different += !CPU_EQUAL(&cores, &seen.expected);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // each of the others gets one
    }
  } seen;
  ASSERT_EQ(sched_getaffinity(0, sizeof seen.expected, &seen.expected), 0);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Pool::instance().parallel_for(4, Seen::body, &seen);
  }
  EXPECT_EQ(seen.different, 0);
}

}  // namespace
}  // namespace cuflash::cpu
