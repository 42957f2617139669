// Global memory: reductions (red), ordering and counters between CTAs (ld.acquire, red.release, atom), vector accesses
// of the epilogues. PTX ISA, "red", "ld.acquire", "red.release", "atom".
#pragma once

namespace cuflash {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kAddsFour = true;  // red.v4.f32 exists
#else
constexpr bool kAddsFour = false;
#endif

// Adds nothing if `adds` is false: a predicate, so that ptxas decides whether to branch.
__device__ __forceinline__ void add_to_global(float* to, float x, bool adds) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p red.relaxed.gpu.global.add.f32 [%0], %1; }" ::"l"(to), "f"(x),
               "r"(int{adds}));
}
__device__ __forceinline__ void add_to_global(double* to, double x, bool adds) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p red.relaxed.gpu.global.add.f64 [%0], %1; }" ::"l"(to), "d"(x),
               "r"(int{adds}));
}
// Requires kAddsFour.
__device__ __forceinline__ void add_four_to_global(float* to, const float (&x)[4], bool adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"l"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(int{adds}));
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void add_release(unsigned* to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Arrival counters: see kv/ticket.h.
__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* from) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(unsigned long long* to, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
// Replaces `expected` by `wanted`; the previous value is not returned. "atom.cas"
__device__ __forceinline__ void compare_and_swap(unsigned long long* at, unsigned long long expected,
                                                 unsigned long long wanted) {
  asm volatile("{ .reg .b64 before; atom.relaxed.gpu.global.cas.b64 before, [%0], %1, %2; }" ::"l"(at), "l"(expected),
               "l"(wanted)
               : "memory");
}
// Returns the previous value. A later adder sees all writes of earlier adders, and those of their CTAs before a
// barrier. One acq_rel instruction: a separate fence would wait for memory once more.
__device__ __forceinline__ unsigned long long add_acquire_release(unsigned long long* to, unsigned long long value) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(to), "l"(value) : "memory");
  return before;
}

// Forces the compiler to compute x here, where its latency is hidden, and not at its use after a wait.
__device__ __forceinline__ void materialize(float& x) { asm volatile("" : "+f"(x)); }
__device__ __forceinline__ void materialize(double& x) { asm volatile("" : "+d"(x)); }
__device__ __forceinline__ void materialize(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void materialize(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void materialize(unsigned long long& x) { asm volatile("" : "+l"(x)); }
__device__ __forceinline__ void materialize(long long& x) { asm volatile("" : "+l"(x)); }
template <class T>
__device__ __forceinline__ void materialize(T*& x) {
  asm volatile("" : "+l"(x));
}

// Stores adjacent values with vector instructions.
__device__ __forceinline__ void store_to_global(float* to, const float (&x)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void store_to_global(float* to, const float (&x)[2]) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x[0]), "f"(x[1]) : "memory");
}
__device__ __forceinline__ void store_to_global(double* to, const double (&x)[2]) {
  asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(x[0]), "d"(x[1]) : "memory");
}
__device__ __forceinline__ void store_to_global(double* to, const double (&x)[4]) {
  asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(x[0]), "d"(x[1]) : "memory");
  asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(to + 2), "d"(x[2]), "d"(x[3]) : "memory");
}
// Loads adjacent values that another CTA has written: ld.cg bypasses L1.
__device__ __forceinline__ void load_from_l2(const float* from, float (&x)[4]) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_from_l2(const float* from, float (&x)[2]) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_from_l2(const double* from, double (&x)[2]) {
  asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(x[0]), "=d"(x[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_from_l2(const double* from, double (&x)[4]) {
  asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(x[0]), "=d"(x[1]) : "l"(from) : "memory");
  asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(x[2]), "=d"(x[3]) : "l"(from + 2) : "memory");
}

}  // namespace cuflash
