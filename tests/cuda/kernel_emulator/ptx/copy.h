// kernels/ptx/copy.h on the host.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

extern unsigned char memory[];  // shared memory: dynamic alone

inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - memory);
}
template <int kCount>
inline void load_from_shared(unsigned address, float (&x)[kCount], bool loads) {
  if (loads) std::memcpy(x, memory + address, sizeof x);
}
inline void* __cvta_shared_to_generic(unsigned address) { return memory + address; }
inline void copy_async_16(unsigned to, const void* from, int bytes) {
  host_cuda::start_copy(memory + to, from, bytes, 16 - bytes);
}
inline void copy_async_16(unsigned to, const void* from) { copy_async_16(to, from, 16); }
inline void copy_async_commit() { host_cuda::commit_copies(); }
template <int kPending>
inline void copy_async_wait() {
  host_cuda::wait_for_copies(kPending);
}

}  // namespace cuflash
