// kernels/ptx/barrier.h on the host.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

inline void barrier_init(unsigned barrier, unsigned arrivals) {
  host_cuda::start_phases(barrier, static_cast<int>(arrivals));
}
inline void barrier_init_fence() {}
inline void barrier_arrive(unsigned barrier) { host_cuda::arrive(barrier, 0); }
inline void barrier_arrive_expecting(unsigned barrier, unsigned bytes) { host_cuda::arrive(barrier, bytes); }
inline void barrier_wait(unsigned barrier, unsigned parity) { host_cuda::wait_for_phase(barrier, parity); }
inline void numbered_barrier_wait(int number, int threads) { host_cuda::wait_for_some(number, threads); }
inline void numbered_barrier_arrive(int number, int threads) { host_cuda::arrive_for_some(number, threads); }
inline bool numbered_barrier_any(int number, int threads, bool found) {
  return host_cuda::any_of_some(number, threads, found);
}
inline void async_proxy_fence() {}

}  // namespace cuflash
