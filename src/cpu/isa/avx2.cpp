// x86-64 with AVX2, FMA and F16C: 16 registers of 32 bytes, of which 12 are accumulators.
#if defined(__x86_64__)
#include "cpu/isa/isa.h"
#include "cpu/isa/x86_intrinsics.h"

namespace cuflash::cpu {
namespace avx2 {

constexpr int kVectorBytes = 32;
constexpr int kFloatRows = 6, kFloatVectors = 2;
constexpr int kDepthAtOnce = 1, kExpAtOnce = 2;
constexpr int64_t kTileQ = 512;
constexpr bool kFetchesAhead = false;
constexpr int kDoubleRows = 3, kDoubleVectors = 4;
constexpr int kDecodeKeys = 2, kDecodeVectors = 2;

#include "cpu/isa/vector_kernels.h"

#include "cpu/isa/decode_kernels.h"

}  // namespace avx2

const Kernels<float> avx2_f32 = avx2::table<float>();
const Kernels<double> avx2_f64 = avx2::table<double>();
const DecodeTables avx2_decode = {avx2::decode_table<float>(), avx2::decode_table<double>()};

}  // namespace cuflash::cpu
#endif
