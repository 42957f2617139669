#include "bench/shared/peak.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace cuflash::bench {

// These loops are in assembly because a compiler would fold, reorder or spill their operations.
// 24 sums hide the latency of four cycles at up to six instructions per cycle.
// Two pairs of operands alternate, so that bits toggle as they do in real work.
// clang-format off
#define CUFLASH_TIMES_12(X, Y) X(0) Y(1) X(2) Y(3) X(4) Y(5) X(6) Y(7) X(8) Y(9) X(10) Y(11)
#define CUFLASH_TIMES_24(X, Y) CUFLASH_TIMES_12(X, Y) \
  X(12) Y(13) X(14) Y(15) X(16) Y(17) X(18) Y(19) X(20) Y(21) X(22) Y(23)
// clang-format on

namespace {

#if defined(__aarch64__)

#define CUFLASH_REGISTERS                                                                                             \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", \
      "v18", "v19", "v20", "v21", "v22", "v23", "v28", "v29", "v30", "v31", "memory", "cc"
#define CUFLASH_CLEAR(n) "movi v" #n ".4s, #0\n"

void fmla(int64_t steps, const float* random) {
#define CUFLASH_EVEN(n) "fmla v" #n ".4s, v30.4s, v31.4s\n"
#define CUFLASH_ODD(n) "fmla v" #n ".4s, v28.4s, v29.4s\n"
  asm volatile("ldp q30, q31, [%1]\n"
               "ldp q28, q29, [%1, #32]\n" CUFLASH_TIMES_24(CUFLASH_CLEAR, CUFLASH_CLEAR) "1:\n" CUFLASH_TIMES_24(CUFLASH_EVEN, CUFLASH_ODD)
               "subs %0, %0, #1\n"
               "b.ne 1b\n"
               : "+r"(steps)
               : "r"(random)
               : CUFLASH_REGISTERS);
#undef CUFLASH_EVEN
#undef CUFLASH_ODD
}

void bfmmla(int64_t steps, const float* random) {
#define CUFLASH_EVEN(n) "bfmmla v" #n ".4s, v30.8h, v31.8h\n"
#define CUFLASH_ODD(n) "bfmmla v" #n ".4s, v28.8h, v29.8h\n"
  asm volatile(".arch_extension bf16\n"
               "ldp q30, q31, [%1]\n"
               "ldp q28, q29, [%1, #32]\n" CUFLASH_TIMES_24(CUFLASH_CLEAR, CUFLASH_CLEAR) "1:\n" CUFLASH_TIMES_24(CUFLASH_EVEN, CUFLASH_ODD)
               "subs %0, %0, #1\n"
               "b.ne 1b\n"
               : "+r"(steps)
               : "r"(random)
               : CUFLASH_REGISTERS);
#undef CUFLASH_EVEN
#undef CUFLASH_ODD
}

#elif defined(__x86_64__)

void fma512(int64_t steps, const float* random) {
#define CUFLASH_CLEAR(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n"
#define CUFLASH_EVEN(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define CUFLASH_ODD(n) "vfmadd231ps %%zmm28, %%zmm29, %%zmm" #n "\n"
  asm volatile("vmovups (%1), %%zmm30\n"
               "vmovups 64(%1), %%zmm31\n"
               "vmovups 128(%1), %%zmm28\n"
               "vmovups 192(%1), %%zmm29\n" CUFLASH_TIMES_24(CUFLASH_CLEAR, CUFLASH_CLEAR) "1:\n" CUFLASH_TIMES_24(CUFLASH_EVEN, CUFLASH_ODD)
               "dec %0\n"
               "jnz 1b\n"
               "vzeroupper\n"
               : "+r"(steps)
               : "r"(random)
               : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                 "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#undef CUFLASH_EVEN
#undef CUFLASH_ODD
#undef CUFLASH_CLEAR
}

void fma256(int64_t steps, const float* random) {
#define CUFLASH_CLEAR(n) "vxorps %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n"
#define CUFLASH_EVEN(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"
#define CUFLASH_ODD(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #n "\n"
  asm volatile("vmovups (%1), %%ymm14\n"
               "vmovups 32(%1), %%ymm15\n"
               "vmovups 64(%1), %%ymm12\n"
               "vmovups 96(%1), %%ymm13\n" CUFLASH_TIMES_12(CUFLASH_CLEAR, CUFLASH_CLEAR) "1:\n" CUFLASH_TIMES_12(CUFLASH_EVEN, CUFLASH_ODD)
               "dec %0\n"
               "jnz 1b\n"
               "vzeroupper\n"
               : "+r"(steps)
               : "r"(random)
               : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                 "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#undef CUFLASH_EVEN
#undef CUFLASH_ODD
#undef CUFLASH_CLEAR
}

#endif

}  // namespace

RegisterLoop f32_register_loop() {
#if defined(__aarch64__)
  return {"FMLA", 24 * 8, fmla};
#elif defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {"FMA of AVX-512", 24 * 32, fma512};
  if (__builtin_cpu_supports("fma")) return {"FMA of AVX2", 12 * 16, fma256};
  return {"none", 1, nullptr};
#else
  return {"none", 1, nullptr};
#endif
}

RegisterLoop bf16_register_loop() {
#if defined(__aarch64__)
  if (getauxval(AT_HWCAP2) & HWCAP2_BF16) return {"BFMMLA", 24 * 32, bfmmla};
#endif
  return {"none", 1, nullptr};
}

}  // namespace cuflash::bench
