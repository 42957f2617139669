#include "cuda/families/params_kv.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/families/params_forward.h"
#include "kv/geometry.h"

namespace cuflash::cuda {
namespace {

// Numbers of rows and entries beyond all ints are as good as the largest int: no sequence is as long, no table names more.
int as_int(int64_t n) { return static_cast<int>(std::min<int64_t>(n, std::numeric_limits<int>::max())); }

CacheView view_of(const CachedKeys& k) {
  CacheView c{};
  c.rows = k.rows, c.leftpad = k.leftpad, c.entry = k.entry;
  c.table = k.table, c.table_stride = k.table_stride;
  c.entries = k.entries;
  c.page_size = as_int(k.page_size), c.len_new = as_int(k.len_new);
  c.total_new = k.total_new, c.cu_new = k.cu_new, c.used_new = k.used_new;
  return c;
}

RotaryView view_of(const Rotary& r) {
  return {r.cos,         r.sin,       static_cast<int>(r.dtype), r.cos_stride,
          r.sin_stride,  r.positions, static_cast<int>(r.dim),   r.interleaved,
          r.one_position};
}

PrologueLoads prologue_loads(const CacheProblem& p, const KvPlan& plan) {
  PrologueLoads f{};
  const CachedKeys& c = p.cache;
  f.rows = c.rows;
  if (c.page_size != 0) f.table = c.table, f.table_stride = c.table_stride, f.page_size = as_int(c.page_size);
  else if (c.entry) f.table = c.entry, f.table_stride = 1, f.page_size = as_int(std::max<int64_t>(1, p.len_k));
  const auto by = [](int64_t n) { return divisor(static_cast<unsigned>(std::max<int64_t>(1, n))); };
  f.by_page_size = by(f.page_size);
  f.last_row = as_int(std::max<int64_t>(1, p.len_k) - 1), f.last_entry = as_int(std::max<int64_t>(1, c.entries) - 1);
  f.row_tiles = static_cast<int>(plan.row_tiles), f.by_row_tiles = by(plan.row_tiles);
  f.splits = static_cast<short>(plan.known_splits), f.tiles = static_cast<unsigned char>(plan.known_tiles);
  f.box_bits = static_cast<unsigned char>(std::countr_zero(static_cast<unsigned>(plan.config.tile_k / plan.box_rows)));
  f.k_head = p.k.head_stride != 0, f.k_entry = p.k.batch_stride != 0;
  f.v_head = p.v.head_stride != 0, f.v_entry = p.v.batch_stride != 0;
  return f;
}

}  // namespace

KvParams kv_params(const CacheProblem& p, const KvPlan& plan, void* workspace, uint64_t* tile_counts) {
  KvParams c{};
  c.attention = attention_params(p, tile_counts);
  c.o = cuda::view_of(p.o), c.lse = cuda::view_of(p.lse);
  c.k_new = cuda::view_of(p.k_new), c.v_new = cuda::view_of(p.v_new);
  if (p.v_in_k) c.v_column = static_cast<int>(column_of_values(p));
  c.cache = view_of(p.cache), c.rotary = view_of(p.rotary);
  c.row_tiles = static_cast<int>(plan.row_tiles), c.splits = static_cast<int>(plan.splits);
  c.eager_splits = static_cast<int>(plan.eager_splits), c.short_splits = static_cast<int>(plan.short_splits);
  c.least_tiles = static_cast<int>(plan.least_tiles), c.state_rows = static_cast<int>(plan.state_rows);
  if (plan.workspace.size == 0) return c;
  const auto part = [&](size_t offset) { return static_cast<void*>(static_cast<std::byte*>(workspace) + offset); };
  c.tickets = static_cast<uint64*>(part(plan.workspace.tickets));
  c.split_states = part(plan.workspace.states), c.split_o = part(plan.workspace.sums);
  return c;
}

Sm90KvParams sm90_kv_params(const CacheProblem& p, const KvPlan& plan, void* workspace, uint64_t* tile_counts) {
  // A call is long, for the L2 cache, if CTAs come after those that run from the beginning, or if these read four times what
  // it holds: on an H200, where head sizes are 128, 132 x 48 x 32 KiB.
  constexpr int kManyTiles = 48;
  const int rows = static_cast<int>(plan.box_rows);
  return {tensor_map(p.k, cached_extent(p, p.dim_qk), rows),
          tensor_map(p.v, cached_extent(p, p.dim_v), rows),
          prologue_loads(p, plan),
          kv_params(p, plan, workspace, tile_counts),
          static_cast<int>(plan.first_wave_ctas),
          plan.at_once ? kManyTiles / plan.config.ctas_per_sm : 0,
          static_cast<int>(plan.loads_in_flight)};
}

MergeParams merge_params(const MergeProblem& p) {
  return {cuda::view_of(p.o_a),
          cuda::view_of(p.lse_a),
          cuda::view_of(p.o_b),
          cuda::view_of(p.lse_b),
          cuda::view_of(p.o),
          cuda::view_of(p.lse),
          p.batch,
          p.heads,
          p.len,
          static_cast<int>(p.dim)};
}

}  // namespace cuflash::cuda
