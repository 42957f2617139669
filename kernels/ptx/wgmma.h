// wgmma.mma_async: m64nNk16 products of f16 or bf16 with f32 accumulators, issued by consumer warpgroups. PTX ISA,
// "wgmma.mma_async". The accumulators are adjacent 16x8 tiles, 16 rows per warp: see accumulator.h.
//
// The instruction names each of its registers, so each N has its own asm text; macros generate it.
#pragma once

#include "config.h"
#include "ptx/accumulator.h"

namespace cuflash {

using Descriptor = unsigned long long;  // matrix descriptor: see tile/swizzled.h

// d = a b (start), d += a b (add). a: in shared memory, K-major, or in registers in the layout of Operands<E>::A. b: in
// shared memory, K-major or, with kTransposed, MN-major.
template <Element E, int kColumns, bool kTransposed>
struct WarpgroupProduct;

// clang-format off
#define CUFLASH_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CUFLASH_NAMES_16 CUFLASH_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CUFLASH_NAMES_24 CUFLASH_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CUFLASH_NAMES_32 CUFLASH_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CUFLASH_NAMES_40 CUFLASH_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CUFLASH_NAMES_48 CUFLASH_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CUFLASH_NAMES_56 CUFLASH_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define CUFLASH_NAMES_64 CUFLASH_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define CUFLASH_NAMES_72 CUFLASH_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define CUFLASH_NAMES_80 CUFLASH_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define CUFLASH_NAMES_88 CUFLASH_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define CUFLASH_NAMES_96 CUFLASH_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define CUFLASH_NAMES_104 CUFLASH_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define CUFLASH_NAMES_112 CUFLASH_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define CUFLASH_NAMES_120 CUFLASH_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CUFLASH_NAMES_128 CUFLASH_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define CUFLASH_SUMS_8(how, d, n)                                                                                      \
  how(d[(n) / 4].x[0]), how(d[(n) / 4].x[1]), how(d[(n) / 4].x[2]), how(d[(n) / 4].x[3]), how(d[(n) / 4 + 1].x[0]),    \
      how(d[(n) / 4 + 1].x[1]), how(d[(n) / 4 + 1].x[2]), how(d[(n) / 4 + 1].x[3])
#define CUFLASH_SUMS_16(how, d) CUFLASH_SUMS_8(how, d, 0), CUFLASH_SUMS_8(how, d, 8)
#define CUFLASH_SUMS_24(how, d) CUFLASH_SUMS_16(how, d), CUFLASH_SUMS_8(how, d, 16)
#define CUFLASH_SUMS_32(how, d) CUFLASH_SUMS_24(how, d), CUFLASH_SUMS_8(how, d, 24)
#define CUFLASH_SUMS_40(how, d) CUFLASH_SUMS_32(how, d), CUFLASH_SUMS_8(how, d, 32)
#define CUFLASH_SUMS_48(how, d) CUFLASH_SUMS_40(how, d), CUFLASH_SUMS_8(how, d, 40)
#define CUFLASH_SUMS_56(how, d) CUFLASH_SUMS_48(how, d), CUFLASH_SUMS_8(how, d, 48)
#define CUFLASH_SUMS_64(how, d) CUFLASH_SUMS_56(how, d), CUFLASH_SUMS_8(how, d, 56)
#define CUFLASH_SUMS_72(how, d) CUFLASH_SUMS_64(how, d), CUFLASH_SUMS_8(how, d, 64)
#define CUFLASH_SUMS_80(how, d) CUFLASH_SUMS_72(how, d), CUFLASH_SUMS_8(how, d, 72)
#define CUFLASH_SUMS_88(how, d) CUFLASH_SUMS_80(how, d), CUFLASH_SUMS_8(how, d, 80)
#define CUFLASH_SUMS_96(how, d) CUFLASH_SUMS_88(how, d), CUFLASH_SUMS_8(how, d, 88)
#define CUFLASH_SUMS_104(how, d) CUFLASH_SUMS_96(how, d), CUFLASH_SUMS_8(how, d, 96)
#define CUFLASH_SUMS_112(how, d) CUFLASH_SUMS_104(how, d), CUFLASH_SUMS_8(how, d, 104)
#define CUFLASH_SUMS_120(how, d) CUFLASH_SUMS_112(how, d), CUFLASH_SUMS_8(how, d, 112)
#define CUFLASH_SUMS_128(how, d) CUFLASH_SUMS_120(how, d), CUFLASH_SUMS_8(how, d, 120)

#define CUFLASH_WRITTEN(x) "=f"(x)
#define CUFLASH_ADDED(x) "+f"(x)

#define CUFLASH_WGMMA(columns, type, sums, a, b, adds, transposed)                                                     \
  "{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type\
  " {" sums "}, " a ", " b ", adds, 1, 1, " transposed "; }"

// n0: the number of accumulator registers; n1 to n5: the operand numbers that follow.
#define CUFLASH_PRODUCTS_OF(columns, element, type, n0, n1, n2, n3, n4, n5)                                            \
  template <bool kTransposed>                                                                                          \
  struct WarpgroupProduct<element, columns, kTransposed> {                                                             \
    using Sums = Accumulator<float>[columns / 8];                                                                      \
    static __device__ __forceinline__ void start(Sums& d, Descriptor a, Descriptor b) {                                \
      asm volatile(CUFLASH_WGMMA(columns, type, CUFLASH_NAMES_##n0, "%" #n0, "%" #n1, "0", "0, %" #n2)                 \
                   : CUFLASH_SUMS_##n0(CUFLASH_WRITTEN, d)                                                             \
                   : "l"(a), "l"(b), "n"(int{kTransposed}));                                                           \
    }                                                                                                                  \
    static __device__ __forceinline__ void add(Sums& d, Descriptor a, Descriptor b) {                                  \
      asm volatile(CUFLASH_WGMMA(columns, type, CUFLASH_NAMES_##n0, "%" #n0, "%" #n1, "1", "0, %" #n2)                 \
                   : CUFLASH_SUMS_##n0(CUFLASH_ADDED, d)                                                               \
                   : "l"(a), "l"(b), "n"(int{kTransposed}));                                                           \
    }                                                                                                                  \
    static __device__ __forceinline__ void add(Sums& d, const unsigned (&a)[4], Descriptor b) {                        \
      asm volatile(CUFLASH_WGMMA(columns, type, CUFLASH_NAMES_##n0, "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}", "%" #n4,\
                                 "1", "%" #n5)                                                                         \
                   : CUFLASH_SUMS_##n0(CUFLASH_ADDED, d)                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int{kTransposed}));                       \
    }                                                                                                                  \
  };

#define CUFLASH_PRODUCTS(columns, n0, n1, n2, n3, n4, n5)                                                              \
  CUFLASH_PRODUCTS_OF(columns, Element::bf16, "bf16", n0, n1, n2, n3, n4, n5)                                          \
  CUFLASH_PRODUCTS_OF(columns, Element::f16, "f16", n0, n1, n2, n3, n4, n5)

CUFLASH_PRODUCTS(32, 16, 17, 18, 19, 20, 21)
CUFLASH_PRODUCTS(48, 24, 25, 26, 27, 28, 29)
CUFLASH_PRODUCTS(64, 32, 33, 34, 35, 36, 37)
CUFLASH_PRODUCTS(80, 40, 41, 42, 43, 44, 45)
CUFLASH_PRODUCTS(96, 48, 49, 50, 51, 52, 53)
CUFLASH_PRODUCTS(112, 56, 57, 58, 59, 60, 61)
CUFLASH_PRODUCTS(128, 64, 65, 66, 67, 68, 69)
CUFLASH_PRODUCTS(144, 72, 73, 74, 75, 76, 77)
CUFLASH_PRODUCTS(160, 80, 81, 82, 83, 84, 85)
CUFLASH_PRODUCTS(176, 88, 89, 90, 91, 92, 93)
CUFLASH_PRODUCTS(192, 96, 97, 98, 99, 100, 101)
CUFLASH_PRODUCTS(256, 128, 129, 130, 131, 132, 133)
// clang-format on

}  // namespace cuflash
