#include "cpu/isa/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/isa/isa.h"
#include "cpu/isa/tile_permission.h"
#include "error.h"

namespace cuflash::cpu {
namespace {

const std::string& never_refused() {
  static const std::string none;
  return none;
}

struct Isa {
  const char* name;
  bool (*supported)();
  const Kernels<float>& f32;
  const Kernels<double>& f64;
  const DecodeTables& decode;
  const Kernels<float, Operand16>*bf16 = nullptr, *f16 = nullptr;
  const std::string& (*matrix_refusal)() = never_refused;  // requests what they need from the system; "" if granted

  const Kernels<float, Operand16>* matrices(DType dtype) const {
    return dtype == DType::bf16 ? bf16 : dtype == DType::f16 ? f16 : nullptr;
  }
};

constexpr bool always() { return true; }

#if defined(__x86_64__)
bool has_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("f16c"); }

long arch_prctl(long operation, uintptr_t argument) { return syscall(SYS_arch_prctl, operation, argument); }

bool has_amx() {
  static const bool has = [] {
    if (!has_avx512() || !__builtin_cpu_supports("avx512bw")) return false;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kAmxBf16) || !(edx & kAmxTile)) return false;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & kAvx512Bf16)) return false;
    return offers_tiles(arch_prctl);
  }();
  return has;
}

bool has_amx_fp16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxFp16 = 1u << 21;
  return has_amx() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kAmxFp16);
}

// Evaluated once, so that a workspace query and the call that follows it get the same answer.
const std::string& amx_refusal() {
  static const std::string refusal = refusal_of_tiles(arch_prctl);
  return refusal;
}
#endif

// Best last.
const Isa kIsas[] = {
#if defined(__aarch64__)
    {"neon", always, neon_f32, neon_f64, neon_decode},
    {"neon_bf16", [] { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }, neon_f32, neon_f64, neon_bf16_decode,
     &bfmmla_bf16},
#else
    {"baseline", always, baseline_f32, baseline_f64, baseline_decode},
#endif
#if defined(__x86_64__)
    {"avx2",
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); },
     avx2_f32, avx2_f64, avx2_decode},
    {"avx512", has_avx512, avx512_f32, avx512_f64, avx512_decode},
    {"amx", has_amx, avx512_f32, avx512_f64, avx512_decode, &amx_bf16, nullptr, amx_refusal},
    {"amx_fp16", has_amx_fp16, avx512_f32, avx512_f64, avx512_decode, &amx_bf16, &amx_f16, amx_refusal},
#endif
};

const Isa* find(std::string_view name) {
  for (const Isa& isa : kIsas)
    if (isa.name == name && isa.supported()) return &isa;
  return nullptr;
}

const Isa* best() {
  const Isa* best = nullptr;
  for (const Isa& isa : kIsas)
    if (isa.supported()) best = &isa;
  return best;
}

// Null if CUFLASH_CPU_ISA names a set that is not available.
const Isa* from_environment() {
  const char* name = std::getenv("CUFLASH_CPU_ISA");
  return name && *name ? find(name) : best();
}

std::atomic<const Isa*> forced = nullptr;

const Isa& chosen() {
  static const Isa* const isa = from_environment();
  if (const Isa* other = forced.load(std::memory_order_relaxed)) return *other;
  if (isa) return *isa;
  std::string names;
  for (const char* name : isa_names()) names += join(" ", name);
  throw FlashAttentionError(CUFLASH_UNSUPPORTED,
                            join("CUFLASH_CPU_ISA: \"", std::getenv("CUFLASH_CPU_ISA"),
                                 "\" is not an instruction set of this processor and build; available:", names));
}

// A better set may reuse the tables of a simpler one; the name of the first set with this table says what it does.
template <class HasTable>
const char* first_with(HasTable has_table) {
  return std::find_if(std::begin(kIsas), std::end(kIsas), has_table)->name;
}

}  // namespace

std::vector<const char*> isa_names() {
  std::vector<const char*> names;
  for (const Isa& isa : kIsas)
    if (isa.supported()) names.push_back(isa.name);
  return names;
}

void force_isa(const char* name) { forced.store(name ? find(name) : nullptr); }

const char* isa_name() { return chosen().name; }

template <>
const Kernels<float>& kernels() {
  return chosen().f32;
}
template <>
const Kernels<double>& kernels() {
  return chosen().f64;
}
bool has_matrix_kernels(DType dtype) { return chosen().matrices(dtype) && chosen().matrix_refusal().empty(); }
const Kernels<float, Operand16>& matrix_kernels(DType dtype) { return *chosen().matrices(dtype); }
std::string refusal_of_matrix_kernels(DType dtype) { return chosen().matrices(dtype) ? chosen().matrix_refusal() : ""; }

template <>
const char* isa_name<float>() {
  return first_with([table = &chosen().f32](const Isa& isa) { return &isa.f32 == table; });
}
template <>
const char* isa_name<double>() {
  return first_with([table = &chosen().f64](const Isa& isa) { return &isa.f64 == table; });
}
const char* matrix_isa_name(DType dtype) {
  return first_with([=, table = chosen().matrices(dtype)](const Isa& isa) { return isa.matrices(dtype) == table; });
}

const DecodeTables& decode_tables() { return chosen().decode; }

}  // namespace cuflash::cpu
