// A pool of threads that sleep between jobs. One job at a time; whoever finds it busy, or is itself one of its workers,
// runs its own job alone.
//
// The indices of a job are claimed, by the caller too. So nobody waits for a thread that has yet to wake up: the caller
// does its share as well, and the thread finds nothing left.
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
  // The pool of this process. A child after fork() gets a fresh one: threads do not survive a fork.
  static Pool& instance();

  // Runs body(context, 0 .. n - 1); the calling thread takes part.
  void parallel_for(int64_t n, cuflash_parallel_body body, void* context);

 private:
  // One word, so that nobody claims an index of one job for another.
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
  std::deque<Sleeper> workers_;           // grows while there is no job
  cuflash_parallel_body body_ = nullptr;  // of the job at hand; written while no index is left to claim
  void* context_ = nullptr;
  alignas(64) std::atomic<Ticket> ticket_ = Ticket{};
  std::atomic<uint32_t> job_ = 0;                     // workers wait on it for the next one
  std::atomic<int> spinning_ = 0;                     // workers that wait and are awake
  alignas(64) std::atomic<uint32_t> unfinished_ = 0;  // indices of the job
};

}  // namespace cuflash::cpu
