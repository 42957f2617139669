// Numbers that CTAs send each other through L2, with a mark that says that they are there. PTX ISA, "ld.relaxed",
// "st.relaxed" of .b128, "prefetch".
#pragma once

namespace cuflash {

// Read and written as one: who sees the mark has the numbers, and nobody needs a fence. A mark of 0 is none.
struct alignas(16) FlaggedPair {
  float x[2];
  unsigned long long flag;
};
// Predicates, here and below: code that does nothing is run, too, so that it is in the caches when it does something.
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
// Comes to L2 if it is not there.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace cuflash
