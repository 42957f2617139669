// x86-64 with AVX-512F: 32 registers of 64 bytes; the load broadcasts left operands.
#if defined(__x86_64__)
#include "cpu/isa/isa.h"
#include "cpu/isa/x86_intrinsics.h"

namespace cuflash::cpu {
namespace avx512 {

constexpr int kVectorBytes = 64;
constexpr int kFloatRows = 8, kFloatVectors = 2;
constexpr int kDepthAtOnce = 2, kExpAtOnce = 4;
constexpr int64_t kTileQ = 1024;
constexpr bool kFetchesAhead = true;
constexpr int kDoubleRows = 8, kDoubleVectors = 2;
constexpr int kDecodeKeys = 4, kDecodeVectors = 4;

#include "cpu/isa/vector_kernels.h"

#include "cpu/isa/decode_kernels.h"

}  // namespace avx512

const Kernels<float> avx512_f32 = avx512::table<float>();
const Kernels<double> avx512_f64 = avx512::table<double>();
const DecodeTables avx512_decode = {avx512::decode_table<float>(), avx512::decode_table<double>()};

}  // namespace cuflash::cpu
#endif
