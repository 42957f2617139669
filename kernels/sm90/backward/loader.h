// Producer warpgroup of a backward kernel with a separate warpgroup for dQ. One warp issues the TMA loads, another
// claims tasks, and two prepare the heads that later tasks visit.
#pragma once

#include "sm90/backward/deferred_prepare.h"
#include "sm90/backward/producer.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct BackwardLoader : BackwardProducer<C> {
  using Base = BackwardProducer<C>;
  using Base::count, Base::keys_phase, Base::p, Base::pipeline, Base::stages, Base::tasks, Base::thread;

  using Base::Base;

  // The claiming warp does not wait here: it writes the task after this one only once the loading warp, which has read
  // this one by then, signals that it nears its end.
  static __device__ __forceinline__ void signal_task() {
    named_barrier_arrive(Base::Pipeline::kProducerBarrier, 2 * 32);
  }
  static __device__ __forceinline__ void wait_for_task() {
    named_barrier_sync(Base::Pipeline::kProducerBarrier, 2 * 32);
  }

  // Signals that it is time to claim the next task: late, so that CTAs with short tasks take those that follow a long
  // one, but while the consumers still have two query tiles to visit, so that the first loads are not late.
  __device__ __forceinline__ void signal_near_end() const {
    constexpr int kLeft = 2;
    Ring<C.stages> later = stages;
#pragma unroll
    for (int n = kLeft + 1; n < C.stages; ++n) later.advance();
    if (thread() == 0) {
      mbarrier_wait(pipeline.q_empty(later.stage), later.phase ^ 1);
      mbarrier_arrive(pipeline.near_end());
    }
    __syncwarp();
  }
  __device__ __forceinline__ void claim_tasks() {
#pragma unroll 1
    for (; uniform(Base::task().written) >= 0; keys_phase ^= 1) {
      const int current = tasks.stage;
      tasks.advance();
      mbarrier_wait(pipeline.near_end(), keys_phase);
      if (thread() % 32 == 0) {
        KeyTask& next = pipeline.task(tasks.stage);
        if constexpr (keeps_dq(C)) write_next_task_of_head<Base::kPortable>(next, pipeline.task(current), p.backward);
        else write_next_task<Base::kPortable>(next, p.backward, nullptr, false);
      }
      __syncwarp();
      signal_task();
    }
  }

  // The first query tile of a key tile is loaded while the consumers finish the previous key tile.
  __device__ __forceinline__ void load_tasks() {
#pragma unroll 1
    for (bool first = true;; tasks.advance(), keys_phase ^= 1, first = false) {
      const bool ends = uniform(Base::task().written) < 0;
      Base::read_task();
#pragma unroll 1
      for (int n = 0; n < max(count, 2); ++n) {
        if (n == 1) {
          if (!first) mbarrier_wait(pipeline.k_empty(), keys_phase ^ 1);
          if (ends) break;
          if (thread() == 0) Base::load_keys_and_values();
          __syncwarp();
        }
        if (n < count) Base::load_next_queries();
      }
      if (ends) break;
      signal_near_end();
      wait_for_task();
    }
    if (thread() == 0) mbarrier_arrive(pipeline.k_full());
  }

  __device__ __forceinline__ void run() {
    const int warp = uniform(thread() / 32);
    if (warp == 0) load_tasks();
    else if (warp == 1) claim_tasks();
    else DeferredPrepare<C>{p.backward}.run();
  }
};

}  // namespace cuflash
