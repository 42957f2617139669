#include "cpu/threads/sleeper.h"

#include <pthread.h>

namespace cuflash::cpu {

void Sleeper::sleep(const std::atomic<uint32_t>& value, uint32_t old) {
  // Either this thread sees the new value, or the thread that set it sees this one asleep: both operations are
  // sequentially consistent.
  state_.store(asleep);
  uint32_t state = asleep;
  if (value.load() != old && state_.compare_exchange_strong(state, awake)) return;
  while ((state = state_.load(std::memory_order_acquire)) != awake) state_.wait(state, std::memory_order_acquire);
  if (narrowed_) pthread_setaffinity_np(pthread_self(), sizeof cores_, &cores_);
}

bool Sleeper::wake() {
  uint32_t state = asleep;
  if (state_.load() != asleep || !state_.compare_exchange_strong(state, waking)) return false;
  narrowed_ = keep_away_from_this_core();
  state_.store(awake, std::memory_order_release);
  state_.notify_one();
  return true;
}

// Linux tends to place a woken thread on the core of the thread that woke it. That thread keeps computing, so the woken
// one would wait milliseconds for a scheduler tick, next to idle cores.
bool Sleeper::keep_away_from_this_core() {
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return false;
  if (pthread_getaffinity_np(thread.native_handle(), sizeof cores_, &cores_) != 0) return false;
  cpu_set_t others = cores_;
  CPU_CLR(static_cast<size_t>(core), &others);
  if (CPU_COUNT(&others) == 0) return false;
  return pthread_setaffinity_np(thread.native_handle(), sizeof others, &others) == 0;
}

}  // namespace cuflash::cpu
