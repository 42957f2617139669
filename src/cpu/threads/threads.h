// Workers for one call: the library's own small pool, or the caller's parallel_for.
//
// An atomic counter hands tasks to `workers` loops, each with its own scratch, so the result does not depend on how
// many threads run or in which order. An executor that runs the loops one after the other is correct too.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>

namespace cuflash::cpu {

// CUFLASH_NUM_THREADS if it is set, otherwise the cores that affinity and cgroup quota leave to this process.
int default_num_threads();  // throws if the variable is not a valid number

// The number of threads that this call may use; at least 1.
int num_threads(const Execution& execution);

// Runs task(worker, index) for every index in [0, tasks), worker in [0, workers). Returns when all are done.
using Task = void (*)(void* context, int64_t worker, int64_t index);
void run_tasks(const Execution& execution, int64_t workers, int64_t tasks, Task task, void* context);

template <class Body>
void run_tasks(const Execution& execution, int64_t workers, int64_t tasks, Body&& body) {
  run_tasks(
      execution, workers, tasks,
      [](void* context, int64_t worker, int64_t index) { (*static_cast<Body*>(context))(worker, index); }, &body);
}

}  // namespace cuflash::cpu
