// Barriers: mbarriers in shared memory, on which copies and threads arrive, and the numbered barriers of a CTA. PTX ISA,
// "Parallel Synchronization and Communication Instructions: mbarrier, bar, fence".
#pragma once

namespace cuflash {

// A phase ends when `arrivals` have come and the bytes that were announced are there. Addresses are those of
// shared_address.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// What was initialised becomes visible to copies, too. "fence.mbarrier_init"
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and announces bytes that copies will bring in this phase. "mbarrier.arrive.expect_tx"
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended; a barrier starts in phase 0. Asks again seldom (the number is nanoseconds): a
// warp that asks all the time takes issue slots from those that compute. "mbarrier.try_wait"
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 1000000; @!done bra again; "
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Numbered barriers; `threads` counts those that arrive and those that wait. "bar.sync", "bar.arrive"
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// All wait, and get to know whether one of them has found something. "bar.red"
__device__ __forceinline__ bool named_barrier_any(int number, int threads, bool found) {
  int any;
  asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(number), "r"(threads), "r"(int{found})
               : "memory");
  return any != 0;
}

// Ordinary writes to shared memory come before what copies and warpgroup products do there. "fence.proxy.async"
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace cuflash
