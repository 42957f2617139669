// Exchange through L2 between CTAs in the epilogue of split-KV decode: two floats and a flag, written as one 128-bit
// word. PTX ISA, "ld.relaxed", "st.relaxed" of .b128, "prefetch".
#pragma once

namespace cuflash {

// One 128-bit access: a reader that sees the flag has the floats, so no fence is needed. 0: no flag.
struct alignas(16) FlaggedPair {
  float x[2];
  unsigned long long flag;
};
// Predicated, here and below, instead of skipped by a branch: a dry run then executes the same code and brings it into
// the instruction cache.
__device__ __forceinline__ void store_flagged(FlaggedPair* to, float x, float y, unsigned long long flag, bool sends) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 numbers; .reg .b128 all; setp.ne.s32 p, %4, 0; mov.b64 numbers, {%1, %2}; "
      "mov.b128 all, {numbers, %3}; @p st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(to),
      "f"(x), "f"(y), "l"(flag), "r"(int{sends})
      : "memory");
}
__device__ __forceinline__ FlaggedPair load_flagged(const FlaggedPair* at) {
  FlaggedPair pair;
  asm volatile(
      "{ .reg .b64 numbers; .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%3]; mov.b128 {numbers, %2}, all; "
      "mov.b64 {%0, %1}, numbers; }"
      : "=f"(pair.x[0]), "=f"(pair.x[1]), "=l"(pair.flag)
      : "l"(at)
      : "memory");
  return pair;
}
__device__ __forceinline__ void clear_flag(FlaggedPair* pair, bool takes) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p st.relaxed.gpu.global.b64 [%0], %1; }" ::"l"(&pair->flag),
               "l"(0ull), "r"(int{takes})
               : "memory");
}
// Brings the line into L2.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace cuflash
