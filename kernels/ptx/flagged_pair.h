// Numbers that CTAs send each other through L2, with a mark that says that they are there. PTX ISA, "ld.relaxed",
// "st.relaxed" of .b128, "prefetch".
#pragma once

namespace cuflash {

// Read and written as one: who sees the mark has the numbers, and nobody needs a fence. A mark of 0 is none.
struct alignas(16) FlaggedPair {
  float x[2];
  unsigned long long mark;
};
// Predicates, here and below: code that does nothing is run, too, so that it is in the caches when it does something.
__device__ __forceinline__ void store_flagged(FlaggedPair* to, float x, float y, unsigned long long mark, bool sends) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 numbers; .reg .b128 all; setp.ne.s32 p, %4, 0; mov.b64 numbers, {%1, %2}; "
      "mov.b128 all, {numbers, %3}; @p st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(to),
      "f"(x), "f"(y), "l"(mark), "r"(int{sends})
      : "memory");
}
__device__ __forceinline__ FlaggedPair load_flagged(const FlaggedPair* at) {
  FlaggedPair post;
  asm volatile(
      "{ .reg .b64 numbers; .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%3]; mov.b128 {numbers, %2}, all; "
      "mov.b64 {%0, %1}, numbers; }"
      : "=f"(post.x[0]), "=f"(post.x[1]), "=l"(post.mark)
      : "l"(at)
      : "memory");
  return post;
}
__device__ __forceinline__ void clear_flag(FlaggedPair* post, bool takes) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p st.relaxed.gpu.global.b64 [%0], %1; }" ::"l"(&post->mark),
               "l"(0ull), "r"(int{takes})
               : "memory");
}
// Comes to L2 if it is not there.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace cuflash
