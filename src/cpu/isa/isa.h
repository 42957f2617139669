// The instruction sets that this build has kernels for. Each is compiled with its own flags, in its own namespace, and
// used only after checking that the processor supports it.
#pragma once

#include "cpu/isa/decode_tables.h"
#include "cpu/isa/kernels.h"

namespace cuflash::cpu {

#if defined(__aarch64__)
extern const Kernels<float> neon_f32;
extern const Kernels<double> neon_f64;
extern const Kernels<float, Operand16> bfmmla_bf16;
extern const DecodeTables neon_decode, neon_bf16_decode;
extern const MatrixProducts bfmmla_decode;
#else
extern const Kernels<float> baseline_f32;
extern const Kernels<double> baseline_f64;
extern const DecodeTables baseline_decode;
#endif
#if defined(__x86_64__)
extern const Kernels<float> avx2_f32, avx512_f32;
extern const Kernels<double> avx2_f64, avx512_f64;
extern const Kernels<float, Operand16> amx_bf16, amx_f16;
extern const DecodeTables avx2_decode, avx512_decode;
#endif

}  // namespace cuflash::cpu
