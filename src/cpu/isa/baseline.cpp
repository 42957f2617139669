// Kernels for any processor: GNU vectors of 16 bytes, which on x86-64 are SSE2 with its 16 registers.
#if !defined(__aarch64__)
#include "cpu/isa/isa.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace cuflash::cpu {
namespace baseline {

constexpr int kVectorBytes = 16;
constexpr int kFloatRows = 2, kFloatVectors = 4;
constexpr int kDepthAtOnce = 1, kExpAtOnce = 2;
constexpr int64_t kTileQ = 512;
constexpr bool kFetchesAhead = false;
constexpr int kDoubleRows = 1, kDoubleVectors = 8;
constexpr int kDecodeKeys = 2, kDecodeVectors = 2;

#include "cpu/isa/vector_kernels.h"

#include "cpu/isa/decode_kernels.h"

}  // namespace baseline

const Kernels<float> baseline_f32 = baseline::table<float>();
const Kernels<double> baseline_f64 = baseline::table<double>();
const DecodeTables baseline_decode = {baseline::decode_table<float>(), baseline::decode_table<double>()};

}  // namespace cuflash::cpu
#endif
