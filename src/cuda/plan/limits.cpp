#include "cuda/plan/limits.h"

#include <algorithm>
#include <bit>

namespace cuflash::cuda {
namespace {

constexpr int kRegisters = 65536, kMaxRegisters = 255, kMaxThreads = 1024;
constexpr int kReserved = 1024;  // shared memory that CUDA takes from every CTA

bool is_power(int value) { return value > 0 && std::has_single_bit(static_cast<unsigned>(value)); }

}  // namespace

int sum_registers(Element element, int rows, int columns, int lanes) {
  const int words = element == Element::f64 ? 2 : 1;
  return rows * columns * words / lanes;
}

int registers_of(int threads, int ctas) { return std::min(kMaxRegisters, kRegisters / (threads * ctas) / 8 * 8); }

bool is_tile(int size) { return is_power(size) && size >= 16 && size <= 256; }
bool are_warps(int count) { return is_power(count) && count <= 8; }
bool has_warps(int threads, int ctas_per_sm) {
  return ctas_per_sm >= 1 && ctas_per_sm <= 8 && threads >= 32 && threads * ctas_per_sm <= 2048 &&
         threads <= kMaxThreads;
}

bool has_spare_registers(const Limits& limits) {
  constexpr int kSpare = 12;
  return limits.registers + kSpare <= limits.max_registers;
}

Limits limits_with(bool shape, int shared_bytes, int ctas, const Arch& arch, int registers, int max_registers) {
  Limits l{Fault::none, shared_bytes, arch.shared_per_block, registers, max_registers};
  if (!shape) l.fault = Fault::shape;
  else if (l.shared_bytes > l.max_shared_bytes) l.fault = Fault::shared_memory;
  else if (l.registers > l.max_registers) l.fault = Fault::registers;
  else if (ctas * (shared_bytes + kReserved) > arch.shared_per_sm) l.fault = Fault::crowded;
  return l;
}

}  // namespace cuflash::cuda
