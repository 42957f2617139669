// Host version of kernels/ptx/barrier.h.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  kernel_emulator::init_mbarrier(barrier, static_cast<int>(arrivals));
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned barrier) { kernel_emulator::arrive_mbarrier(barrier, 0); }
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  kernel_emulator::arrive_mbarrier(barrier, bytes);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) { kernel_emulator::wait_mbarrier(barrier, parity); }
inline void named_barrier_sync(int number, int threads) { kernel_emulator::sync_named(number, threads); }
inline void named_barrier_arrive(int number, int threads) { kernel_emulator::arrive_named(number, threads); }
inline bool named_barrier_any(int number, int threads, bool found) {
  return kernel_emulator::sync_named_any(number, threads, found);
}
inline void async_proxy_fence() {}
inline void async_proxy_fence_global() {}

}  // namespace cuflash
