#include "cuda/families/limits.h"

#include <algorithm>
#include <bit>

namespace cuflash::cuda {
namespace {

constexpr int kRegisters = 65536, kMostRegisters = 255, kMostThreads = 1024;
constexpr int kReserved = 1024;  // shared memory that CUDA takes of every CTA

// Addresses, counters, operands on their way: what is left of the registers of kernels that just compile without spills.
constexpr int kBeside = 30;

int words(Element e) { return e == Element::f64 ? 2 : 1; }

// A sum of rows x columns in the registers of `lanes` threads.
int sum_registers(Element e, int rows, int columns, int lanes = 32) { return rows * columns * words(e) / lanes; }

bool is_power(int value) { return value > 0 && std::has_single_bit(static_cast<unsigned>(value)); }

int registers_of(int threads, int ctas) { return std::min(kMostRegisters, kRegisters / (threads * ctas) / 8 * 8); }

Limits limits(bool shape, int shared, int ctas, const Arch& arch, int registers, int registers_most) {
  Limits l{Fault::none, shared, arch.shared_per_block, registers, registers_most};
  if (!shape) l.fault = Fault::shape;
  else if (l.shared_bytes > l.shared_most) l.fault = Fault::shared_memory;
  else if (l.registers > l.registers_most) l.fault = Fault::registers;
  else if (ctas * (shared + kReserved) > arch.shared_per_sm) l.fault = Fault::crowded;
  return l;
}

constexpr Limits kNoShape{Fault::shape, 0, 0, 0, 0};

template <class Config>
bool has_warps(const Config& c) {
  return c.ctas_per_sm >= 1 && c.ctas_per_sm <= 8 && num_threads(c) >= 32 && num_threads(c) * c.ctas_per_sm <= 2048 &&
         num_threads(c) <= kMostThreads;
}

// Tiles of a few sizes; everything else would be a kernel that nobody has tried.
bool is_tile(int size) { return is_power(size) && size >= 16 && size <= 256; }
bool are_warps(int count) { return is_power(count) && count <= 8; }

// Scores of one block of rows at a time, and weights of half the size beside them.
Limits limits_by_warpgroups(const KvConfig& c, const Arch& arch) {
  constexpr int kWarps = 2 * kWarpgroupThreads / 32;
  const bool shape = arch.number() == 90 && c.row_warps == kWarps && c.key_warps == 1 && c.column_warps == 1 &&
                     c.tile_k >= 32 && c.tile_k <= 128 && std::max(c.dim_qk, c.dim_v) <= 128 && !c.v_in_k &&
                     c.ctas_per_sm == 1;
  const int registers =
      sum_registers(c.element, 16 * row_blocks(c), c.dim_v) + sum_registers(c.element, 16, c.tile_k) * 3 / 2 + kBeside;
  const int most = uses_setmaxnreg(c) ? consumer_registers(c) : registers_of(num_threads(c), 1);
  return limits(shape, shared_bytes(c), c.ctas_per_sm, arch, registers, most);
}

}  // namespace

Limits limits_of(const ForwardConfig& c, const Arch& arch) {
  if (!is_tile(c.tile_q) || !is_tile(c.tile_k) || !are_warps(c.row_warps) || !are_warps(c.column_warps) ||
      c.stages < 1 || c.stages > 4 || !has_warps(c))
    return kNoShape;
  const int columns = c.dim_v / c.column_warps;
  const bool shape = c.tile_q % (16 * c.row_warps) == 0 && c.dim_v % (16 * c.column_warps) == 0 &&
                     (c.element != Element::f32 || c.tile_k % 32 == 0);
  const int rows = c.tile_q / c.row_warps;
  const int registers = sum_registers(c.element, rows, columns) + sum_registers(c.element, rows, c.tile_k) + kBeside;
  return limits(shape, shared_bytes(c), c.ctas_per_sm, arch, registers, registers_of(num_threads(c), c.ctas_per_sm));
}

// Scores become weights of half the size beside them.
Limits limits_of(const Sm90ForwardConfig& c, const Arch& arch) {
  if (c.warpgroups < 2 || c.warpgroups > 4 || c.tile_k < 16 || c.tile_k > 256 || c.stages < 2 || c.stages > 8 ||
      c.schedule < 0 || c.schedule > (kPingPong | kPinWait | kStoreBySmem | kPrefetchQ))
    return kNoShape;
  const int registers = (2 * c.dim_v + 3 * c.tile_k) / 4 + kBeside;
  return limits(arch.number() == 90 && c.tile_k % 16 == 0, shared_bytes(c), 1, arch, registers, consumer_registers(c));
}

Limits limits_of(const BackwardConfig& c, const Arch& arch) {
  if (!is_tile(c.tile_q) || c.tile_q > 64 || !is_tile(c.tile_k) || !are_warps(c.key_warps) ||
      !are_warps(c.column_warps) || c.stages < 0 || c.stages > 3 || !has_warps(c))
    return kNoShape;
  const int keys = c.tile_k / c.key_warps;
  const int score_warps = std::min(c.column_warps, c.tile_q / 16), queries = c.tile_q / score_warps;
  const int at_once = std::min(queries, c.element == Element::f64 || c.options != 0 ? 16 : 32);
  const int blocks =
      (c.dim_qk / 16 + c.column_warps - 1) / c.column_warps + (c.dim_v / 16 + c.column_warps - 1) / c.column_warps;
  const bool shape = c.tile_k % (16 * c.key_warps) == 0 && (c.stages > 0 || queries == at_once);
  const int registers =
      sum_registers(c.element, keys, 16 * blocks) + sum_registers(c.element, keys, 2 * at_once) + kBeside;
  return limits(shape, shared_bytes(c), c.ctas_per_sm, arch, registers, registers_of(num_threads(c), c.ctas_per_sm));
}

Limits limits_of(const Sm90BackwardConfig& c, const Arch& arch) {
  if (c.tile_q != kWarpgroupRows || c.warpgroups < 1 || c.warpgroups > 3 || c.stages < 2 || c.stages > 8 ||
      (splits_sums(c) && c.dq))
    return kNoShape;
  // A warpgroup has sums of dK and dV, or of one of them, of 64 keys; S and dP, of which dS and P take the place.
  const int columns = splits_sums(c) ? std::max(c.dim_qk, c.dim_v) : c.dim_qk + c.dim_v;
  const int registers = sum_registers(Element::f32, kWarpgroupRows, columns, kWarpgroupThreads) +
                        sum_registers(Element::f32, kWarpgroupRows, 2 * c.tile_q, kWarpgroupThreads) + kBeside / 2;
  return limits(arch.number() == 90, shared_bytes(c), 1, arch, registers, key_registers(c));
}

// Scores, dP, and narrow dS of half the size beside them.
Limits limits_of(const Sm90DqConfig& c, const Arch& arch) {
  if (c.warpgroups < 2 || c.warpgroups > 3 || c.tile_k < 16 || c.tile_k > 256 || c.key_stages < 2 || c.key_stages > 8 ||
      c.value_stages < 1 || c.value_stages > 8 || c.query_stages < 1 || c.query_stages > 2 || c.ping_pong < 0 ||
      c.ping_pong > 1)
    return kNoShape;
  const int registers = (2 * c.dim_qk + 5 * c.tile_k) / 4 + kBeside / 2;
  return limits(arch.number() == 90 && c.tile_k % 16 == 0, shared_bytes(c), 1, arch, registers, consumer_registers(c));
}

Limits limits_of(const KvConfig& c, const Arch& arch) {
  if (!is_tile(c.tile_q) || !is_tile(c.tile_k) || !are_warps(c.row_warps) || !are_warps(c.key_warps) ||
      !are_warps(c.column_warps) || c.stages < 2 || c.stages > 8 || !has_warps(c))
    return kNoShape;
  const int keys = c.tile_k / c.key_warps, columns = c.dim_v / c.column_warps;
  if (by_warpgroups(c)) return limits_by_warpgroups(c, arch);
  const bool shape = c.tile_q == 16 * c.row_warps && c.tile_k % (16 * c.key_warps) == 0 &&
                     c.dim_v % (16 * c.column_warps) == 0 && (!c.v_in_k || c.dim_v <= c.dim_qk) &&
                     (c.copy == kCopyTma ? c.tile_k <= 128 : c.tile_k <= consumer_threads(c));
  const int registers = sum_registers(c.element, 16, columns) + sum_registers(c.element, 16, keys) + kBeside;
  return limits(shape, shared_bytes(c), c.ctas_per_sm, arch, registers, registers_of(num_threads(c), c.ctas_per_sm));
}

}  // namespace cuflash::cuda
