// A thread that goes to sleep until another one wakes it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace cuflash::cpu {

class Sleeper {
 public:
  // By the thread itself: sleeps until wake(), unless the value is no longer the old one.
  void sleep(const std::atomic<uint32_t>& value, uint32_t old);

  // By another one. False where the thread is awake.
  bool wake();

  std::thread thread;

 private:
  enum State : uint32_t { awake, asleep, waking };

  bool keep_away_from_this_core();

  std::atomic<uint32_t> state_ = awake;
  cpu_set_t cores_{};  // what the thread may use once it is awake, where wake() narrowed that
  bool narrowed_ = false;
};

}  // namespace cuflash::cpu
