// Host version of kernels/ptx/cp_async.h.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

extern unsigned char memory[];  // dynamic shared memory; there is no other

inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - memory);
}
template <int kCount>
inline void load_from_shared(unsigned address, float (&x)[kCount], bool loads) {
  if (loads) std::memcpy(x, memory + address, sizeof x);
}
inline void* __cvta_shared_to_generic(unsigned address) { return memory + address; }
inline void cp_async_16(unsigned to, const void* from, int bytes) {
  kernel_emulator::start_cp_async(memory + to, from, bytes, 16 - bytes);
}
inline void cp_async_16(unsigned to, const void* from) { cp_async_16(to, from, 16); }
inline void cp_async_commit() { kernel_emulator::commit_cp_async(); }
template <int kPending>
inline void cp_async_wait() {
  kernel_emulator::wait_cp_async(kPending);
}

inline void load_pair_from_shared(unsigned address, float& first, float& second) {
  std::memcpy(&first, memory + address, 4), std::memcpy(&second, memory + address + 4, 4);
}

}  // namespace cuflash
