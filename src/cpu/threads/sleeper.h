// A thread that can sleep until another thread wakes it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace cuflash::cpu {

class Sleeper {
 public:
  // Called by the thread itself: sleeps until wake(), unless the value has already changed from `old`.
  void sleep(const std::atomic<uint32_t>& value, uint32_t old);

  // Called by another thread. Returns false if this one is awake.
  bool wake();

  std::thread thread;

 private:
  enum State : uint32_t { awake, asleep, waking };

  bool keep_away_from_this_core();

  std::atomic<uint32_t> state_ = awake;
  cpu_set_t cores_{};  // the affinity to restore after waking, if wake() narrowed it
  bool narrowed_ = false;
};

}  // namespace cuflash::cpu
