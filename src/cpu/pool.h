// A pool of threads that sleep between jobs. One job at a time; whoever finds it busy, or is itself one of its workers,
// runs its own job alone.
#pragma once

#include <cuflash/cuflash.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace cuflash::cpu {

class Pool {
 public:
  // The pool of this process. A child after fork() gets a fresh one: threads do not survive a fork.
  static Pool& instance();

  // Runs body(context, 0 .. n - 1); the calling thread takes part.
  void parallel_for(int64_t n, cuflash_parallel_body body, void* context);

 private:
  struct Job {
    cuflash_parallel_body body = nullptr;
    void* context = nullptr;
    int64_t n = 0;
  };

  void grow(int64_t threads);
  void worker(int64_t index, uint32_t seen);

  std::mutex busy_;
  std::vector<std::thread> threads_;
  Job job_;                               // written only while every worker waits
  std::atomic<uint32_t> generation_ = 0;  // workers wait on it for the next job
  std::atomic<uint32_t> running_ = 0;     // workers that have not finished this one
};

}  // namespace cuflash::cpu
