// A pool of worker threads that sleep between jobs. It runs one job at a time. A caller that finds it busy, or that is
// itself a worker, runs its job on its own thread.
//
// Workers and the caller claim the indices of a job one by one. So the caller never waits for a worker that has yet to
// wake up: it does the work itself, and the worker finds no index left.
#pragma once

#include <cuflash/cuflash.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "cpu/threads/sleeper.h"

namespace cuflash::cpu {

class Pool {
 public:
  // The pool of this process. A child gets a new one after fork(), because threads do not survive a fork.
  static Pool& instance();

  // Runs body(context, 0 .. n - 1); the calling thread takes part.
  void parallel_for(int64_t n, cuflash_parallel_body body, void* context);

 private:
  // One word, so that a thread cannot claim an index of one job for another.
  struct Ticket {
    uint32_t job;
    uint16_t size, next;
  };
  static_assert(std::atomic<Ticket>::is_always_lock_free);

  void grow(int64_t threads);
  void worker(Sleeper& self, uint32_t seen);
  bool claim(int64_t* index);
  void work();
  void wake_helpers();

  std::mutex busy_;
  std::deque<Sleeper> workers_;           // grows only between jobs
  cuflash_parallel_body body_ = nullptr;  // body of the current job; written only while no index can be claimed
  void* context_ = nullptr;
  alignas(64) std::atomic<Ticket> ticket_ = Ticket{};
  std::atomic<uint32_t> job_ = 0;                     // number of the current job; workers wait for it to change
  std::atomic<int> spinning_ = 0;                     // workers that wait without sleeping
  alignas(64) std::atomic<uint32_t> unfinished_ = 0;  // indices of the current job
};

}  // namespace cuflash::cpu
