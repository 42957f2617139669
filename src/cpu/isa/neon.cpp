// aarch64: 32 registers of 16 bytes; multiplying by one lane of a register is as fast as by a whole register.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "cpu/isa/isa.h"

namespace cuflash::cpu {
namespace neon {

constexpr int kVectorBytes = 16;
constexpr int kFloatRows = 4, kFloatVectors = 4;
constexpr int kDepthAtOnce = 1, kExpAtOnce = 4;
constexpr int64_t kTileQ = 512;
constexpr bool kFetchesAhead = false;
constexpr int kDoubleRows = 2, kDoubleVectors = 8;
constexpr int kDecodeKeys = 4, kDecodeVectors = 4;

#include "cpu/isa/vector_kernels.h"

#include "cpu/isa/decode_kernels.h"

}  // namespace neon

const Kernels<float> neon_f32 = neon::table<float>();
const Kernels<double> neon_f64 = neon::table<double>();
const DecodeTables neon_decode = {neon::decode_table<float>(), neon::decode_table<double>()};
const DecodeTables neon_bf16_decode = {neon::decode_table<float>(), neon::decode_table<double>(), &bfmmla_decode};

}  // namespace cuflash::cpu
#endif
