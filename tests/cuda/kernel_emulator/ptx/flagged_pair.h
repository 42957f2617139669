// Host version of kernels/ptx/flagged_pair.h. A thread that polls a pair lets other CTAs run.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

struct alignas(16) FlaggedPair {
  float x[2];
  unsigned long long flag;
};
inline void store_flagged(FlaggedPair* to, float x, float y, unsigned long long flag, bool sends) {
  if (sends) *to = {{x, y}, flag};
}
inline FlaggedPair load_flagged(const FlaggedPair* at) {
  kernel_emulator::poll();
  return *at;
}
inline void clear_flag(FlaggedPair* pair, bool takes) {
  if (takes) pair->flag = 0;
}
inline void prefetch_l2(const void*) {}

}  // namespace cuflash
