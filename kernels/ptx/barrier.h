// Barriers between producers and consumers: mbarriers in shared memory, on which TMA loads and threads arrive, and the
// named barriers of a CTA. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier, bar, fence".
#pragma once

namespace cuflash {

// A phase completes after `arrivals` arrivals and all expected bytes. `barrier` is an address from shared_address.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised mbarriers visible to the async proxy (TMA). "fence.mbarrier_init"
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and expects `bytes` bytes of TMA loads in this phase. "mbarrier.arrive.expect_tx"
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity has completed; an mbarrier starts in phase 0. The suspend time hint (in
// nanoseconds) is long, because a polling warp takes issue slots from warps that compute. "mbarrier.try_wait"
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 1000000; @!done bra again; "
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Named barriers; `threads` counts threads that arrive and threads that wait. "bar.sync", "bar.arrive"
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// All threads wait and learn whether `found` is true for any of them. "bar.red"
__device__ __forceinline__ bool named_barrier_any(int number, int threads, bool found) {
  int any;
  asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(number), "r"(threads), "r"(int{found})
               : "memory");
  return any != 0;
}

// Orders generic writes to shared memory before accesses of the async proxy (TMA, wgmma). "fence.proxy.async"
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders generic writes to global memory before TMA reads them.
__device__ __forceinline__ void async_proxy_fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace cuflash
