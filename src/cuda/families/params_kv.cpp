#include "cuda/families/params_kv.h"

#include <algorithm>
#include <limits>

#include "cuda/families/kv_common.h"
#include "cuda/families/params_forward.h"

namespace cuflash::cuda {
namespace {

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

}  // namespace

int as_int(int64_t n) { return static_cast<int>(std::min<int64_t>(n, std::numeric_limits<int>::max())); }

KvParams kv_params(const CacheProblem& p, const KvPlan& plan, void* workspace, uint64_t* tile_counts) {
  KvParams c{};
  c.attention = attention_params(p, tile_counts);
  c.o = cuda::view_of(p.o), c.lse = cuda::view_of(p.lse);
  c.k_new = cuda::view_of(p.k_new), c.v_new = cuda::view_of(p.v_new);
  if (p.v_in_k) c.v_column = static_cast<int>(column_of_values(p));
  c.cache = view_of(p.cache), c.rotary = view_of(p.rotary);
  c.row_tiles = static_cast<int>(plan.row_tiles), c.splits = static_cast<int>(plan.splits);
  c.base_splits = static_cast<int>(plan.base_splits), c.short_splits = static_cast<int>(plan.short_splits);
  c.min_tiles_per_split = static_cast<int>(plan.min_tiles_per_split), c.state_rows = static_cast<int>(plan.state_rows);
  if (plan.workspace.size == 0) return c;
  const auto part = [&](size_t offset) { return static_cast<void*>(static_cast<std::byte*>(workspace) + offset); };
  c.tickets = static_cast<uint64*>(part(plan.workspace.tickets));
  c.split_states = part(plan.workspace.states), c.split_o = part(plan.workspace.sums);
  return c;
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
