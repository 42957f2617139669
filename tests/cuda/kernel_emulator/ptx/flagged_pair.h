// kernels/ptx/flagged_pair.h on the host. Who looks at posts again and again lets other CTAs run.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

struct alignas(16) FlaggedPair {
  float x[2];
  unsigned long long mark;
};
inline void store_flagged(FlaggedPair* to, float x, float y, unsigned long long mark, bool sends) {
  if (sends) *to = {{x, y}, mark};
}
inline FlaggedPair load_flagged(const FlaggedPair* at) {
  kernel_emulator::look_elsewhere();
  return *at;
}
inline void clear_flag(FlaggedPair* post, bool takes) {
  if (takes) post->mark = 0;
}
inline void prefetch_l2(const void*) {}

}  // namespace cuflash
