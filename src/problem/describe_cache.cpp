#include "problem/describe_cache.h"

#include <algorithm>

#include "error.h"
#include "problem/cached_rows.h"
#include "problem/describe_common.h"
#include "problem/disjoint.h"
#include "problem/lengths.h"
#include "problem/tensor_rules.h"

namespace cuflash {
namespace {

void require_absent(const char* name, bool given, const char* why) {
  if (given) reject(name, ": cannot be given with a cache; ", why);
}

void require_nothing_else(const cuflash_attention& a) {
  const auto given = [](const cuflash_tensor& t) { return Argument("", t).given(); };
  require_absent("k", given(a.k), "give the cache in cuflash_cache_tensors");
  require_absent("v", given(a.v), "give the cache in cuflash_cache_tensors");
  require_absent("cu_seqlens_k", given(a.cu_seqlens_k), "its lengths are cuflash_cache_tensors.seqlens");
  require_absent("seqlens_k", given(a.seqlens_k), "its lengths are cuflash_cache_tensors.seqlens");
  require_absent("max_seqlen_k", a.max_seqlen_k != 0, "its capacity is known from its shape");
  require_absent("bias", given(a.bias), "call forward on gathered keys");
  require_absent("mask", given(a.mask), "call forward on gathered keys");
  require_absent("mask_summary", given(a.mask_summary), "call forward on gathered keys");
  require_absent("dropout_p", a.dropout_p != 0, "it is for training");
  require_absent("alignment", a.alignment == CUFLASH_TOP_LEFT,
                 "queries are the last positions, so leave it CUFLASH_BOTTOM_RIGHT");
}

// q, and the sizes that it determines.
void describe_queries(CacheProblem& p, const cuflash_attention& a, Snapshot& copies) {
  const Argument q("q", a.q), cu("cu_seqlens_q", a.cu_seqlens_q);
  const bool packed = cu.given();
  require_tensor(q, packed ? 3 : 4, packed ? "[Tq, Hq, D]" : "[B, Hq, Sq, D]");
  if (!is_float(q.dtype())) reject("q: type ", name_of(q.dtype()), " must be f64, f32, f16 or bf16");
  p.dtype = q.dtype();
  p.heads_q = q.extent(1), p.dim_qk = q.extent(q.t.rank - 1);
  if (p.heads_q < 1) reject("q: has ", p.heads_q, " heads, must have at least 1");
  if (p.dim_qk < 1) reject("q: head size D ", p.dim_qk, " must be at least 1");
  p.q = rows_of(q, a.q.data);
  if (!packed) {
    if (a.max_seqlen_q != 0)
      reject("max_seqlen_q: got ", a.max_seqlen_q, " without cu_seqlens_q; leave it 0 for dense tensors");
    p.batch = q.extent(0), p.len_q = q.extent(2);
    p.used_q = describe_used({"seqlens_q", a.seqlens_q}, p.batch, p.len_q, p.memory, copies);
    return;
  }
  if (Argument("seqlens_q", a.seqlens_q).given())
    reject("seqlens_q: cannot be combined with cu_seqlens_q; use one of them");
  require_tensor(cu, 1, "[B + 1]");
  if (cu.extent(0) < 1) reject("cu_seqlens_q: has no elements, must have B + 1");
  p.batch = cu.extent(0) - 1;
  p.cu_q = lengths_of(cu, p.batch + 1, "[B + 1]", "B + 1", p.memory, copies);
  p.total_q = q.extent(0);
  p.len_q = describe_bound("max_seqlen_q", a.max_seqlen_q, {cu, p.cu_q, p.total_q, "q"}, p.memory);
}

// Whether each row of v is a slice of the same row of k.
bool is_slice(const Argument& v, const Argument& k) {
  if (!v.t.data || v.step(0) != k.step(0) || v.step(1) != k.step(1) || v.step(2) != k.step(2)) return false;
  const auto from = reinterpret_cast<uintptr_t>(k.t.data), at = reinterpret_cast<uintptr_t>(v.t.data);
  const auto row = static_cast<uintptr_t>(k.extent(3) * size_of(k.dtype()));
  return at >= from && at - from < row && static_cast<uintptr_t>(v.extent(3) * size_of(v.dtype())) <= row - (at - from);
}

void describe_keys(CacheProblem& p, const cuflash_cache_tensors& c) {
  const Argument k("k", c.k), v("v", c.v), table("block_table", c.block_table);
  const bool paged = table.given();
  // A cache that is only read may be a broadcast view.
  const auto require = Argument("k_new", c.k_new).given() ? require_output : require_tensor;
  require(k, 4, paged ? "[pages, Hk, page_size, D]" : "[E, Hk, S, D]");
  require(v, 4, paged ? "[pages, Hk, page_size, Dv]" : "[E, Hk, S, Dv]");
  require_type(k, p.dtype, "the type of q");
  require_type(v, p.dtype, "the type of q");
  p.heads_k = k.extent(1), p.dim_v = v.extent(3);
  if (p.heads_k < 1) reject("k: has ", p.heads_k, " heads, must have at least 1");
  if (p.heads_q % p.heads_k != 0)
    reject("q: has ", p.heads_q, " heads, must be a multiple of the ", p.heads_k, " heads of k");
  if (p.dim_v < 1) reject("v: head size Dv ", p.dim_v, " must be at least 1");
  require_extent(k, 3, p.dim_qk, "the head size of q");
  require_extent(v, 0, k.extent(0), paged ? "the pages of k" : "the entries of k");
  require_extent(v, 1, p.heads_k, "the heads of k");
  require_extent(v, 2, k.extent(2), paged ? "the page size of k" : "the capacity of k");
  p.k = rows_of<const void*>(k, c.k.data), p.v = rows_of<const void*>(v, c.v.data);
  p.k_cache = rows_of(k, c.k.data), p.v_cache = rows_of(v, c.v.data);
  p.v_in_k = is_slice(v, k);

  p.cache.entries = k.extent(0);
  if (!paged) {
    p.len_k = k.extent(2);
    return;
  }
  require_tensor(table, 2, "[B, max_pages]");
  require_type(table, DType::i32, "the type of block tables");
  require_extent(table, 0, p.batch, "the batch");
  p.cache.page_size = k.extent(2);
  if (p.cache.page_size < 1) reject("k: page size ", p.cache.page_size, " must be at least 1");
  p.cache.table = static_cast<const int32_t*>(c.block_table.data);
  p.cache.table_stride = table.step(0), p.cache.columns = table.extent(1);
  p.len_k = std::min(p.cache.columns * p.cache.page_size, kMaxExtent);
}

void describe_new_rows(CacheProblem& p, const cuflash_cache_tensors& c, Snapshot& copies) {
  const Argument k("k_new", c.k_new), v("v_new", c.v_new), cu("cu_seqlens_new", c.cu_seqlens_new);
  const Argument used("seqlens_new", c.seqlens_new);
  if (!k.given()) {
    if (v.given()) reject("v_new: was given without k_new; give both, or neither");
    if (cu.given()) reject("cu_seqlens_new: was given without k_new");
    if (used.given()) reject("seqlens_new: was given without k_new");
    if (c.max_seqlen_new != 0) reject("max_seqlen_new: got ", c.max_seqlen_new, " without k_new");
    return;
  }
  if (p.v_in_k && v.given())
    reject("v_new: must be absent because v is a slice of k, so rows appended to k are also in v");
  const bool packed = cu.given();
  const int rank = packed ? 3 : 4, row = packed ? 0 : 2;
  const auto require_new = [&](const Argument& x, int64_t dim, const char* shape, const char* dim_meaning) {
    require_tensor(x, rank, shape);
    require_type(x, p.dtype, "the type of q");
    require_extent(x, 1, p.heads_k, "the heads of k");
    require_extent(x, rank - 1, dim, dim_meaning);
    if (!packed) require_extent(x, 0, p.batch, "the batch of q");
  };
  require_new(k, p.dim_qk, packed ? "[Tn, Hk, D]" : "[B, Hk, Sn, D]", "the head size of k");
  p.k_new = rows_of(k, c.k_new.data);
  if (!p.v_in_k) {
    require_new(v, p.dim_v, packed ? "[Tn, Hk, Dv]" : "[B, Hk, Sn, Dv]", "the head size of v");
    require_extent(v, row, k.extent(row), "the rows of k_new");
    p.v_new = rows_of(v, c.v_new.data);
  }
  if (!packed) {
    if (c.max_seqlen_new != 0)
      reject("max_seqlen_new: got ", c.max_seqlen_new, " without cu_seqlens_new; leave it 0 for dense tensors");
    p.cache.len_new = k.extent(2);
    p.cache.used_new = describe_used(used, p.batch, p.cache.len_new, p.memory, copies);
    return;
  }
  if (used.given()) reject("seqlens_new: cannot be combined with cu_seqlens_new; use one of them");
  p.cache.cu_new = lengths_of(cu, p.batch + 1, "[B + 1]", "B + 1", p.memory, copies);
  p.cache.total_new = k.extent(0);
  p.cache.len_new =
      describe_bound("max_seqlen_new", c.max_seqlen_new, {cu, p.cache.cu_new, p.cache.total_new, "k_new"}, p.memory);
}

void describe_rotary(CacheProblem& p, const cuflash_cache_tensors& c) {
  const Argument cos("rotary_cos", c.rotary_cos), sin("rotary_sin", c.rotary_sin);
  if (!cos.given() && !sin.given()) return;
  require_tensor(cos, 2, "[positions, R / 2]");
  require_tensor(sin, 2, "[positions, R / 2]");
  require_value_type(cos, p.dtype);
  require_type(sin, cos.dtype(), "the type of rotary_cos");
  require_extent(sin, 0, cos.extent(0), "the positions of rotary_cos");
  require_extent(sin, 1, cos.extent(1), "the width of rotary_cos");
  if (2 * cos.extent(1) > p.dim_qk)
    reject("rotary_cos: width ", cos.extent(1), " rotates ", 2 * cos.extent(1), " elements, but the head size is ",
           p.dim_qk, "; the width may be at most half the head size");
  if (cos.extent(1) == 0) return;
  p.rotary = {c.rotary_cos.data,
              c.rotary_sin.data,
              cos.dtype(),
              cos.step(0),
              sin.step(0),
              cos.extent(0),
              2 * cos.extent(1),
              c.rotary_interleaved != 0,
              c.rotary_one_position != 0};
}

void describe_outputs(CacheProblem& p, const cuflash_attention& a, const cuflash_cache_tensors& c) {
  const Argument o("o", c.o), lse("lse", c.lse);
  require_like_o(o, a.q, p.dim_v, Written::now);
  p.o = rows_of(o, c.o.data);
  if (lse.given()) {
    require_like_lse(lse, a.q, Written::now);
    p.lse = lse_rows_of(lse, c.lse.data);
  }
}

// One of the two partial results: o shaped like `like`, and its LSE.
void describe_part(const Argument& o, const Argument& lse, const Argument& like) {
  require_tensor(o, like.t.rank, like.t.rank == 3 ? "[Tq, Hq, Dv]" : "[B, Hq, Sq, Dv]");
  require_type(o, like.dtype(), "the type of o_a");
  for (int d = 0; d < like.t.rank; ++d) require_extent(o, d, like.extent(d), "as in o_a");
  require_like_lse(lse, like.t, Written::before);
}

}  // namespace

CacheProblem describe(const cuflash_attention& a, const cuflash_cache_tensors& c, Memory memory, Snapshot& copies) {
  CacheProblem p;
  p.memory = memory;
  require_nothing_else(a);
  describe_queries(p, a, copies);
  describe_keys(p, c);
  describe_new_rows(p, c, copies);
  describe_rotary(p, c);
  describe_scores(p, a);
  describe_score_inputs(p, a);
  if (c.num_splits < 0) reject("num_splits: got ", c.num_splits, ", must be 0 (automatic) or more");
  p.num_splits = c.num_splits;
  describe_outputs(p, a, c);
  describe_cached_rows(p, c, copies);
  require_disjoint(p, a, c);
  return p;
}

MergeProblem describe(const cuflash_merge_tensors& t, Memory memory) {
  const Argument o_a("o_a", t.o_a), o_b("o_b", t.o_b), lse_a("lse_a", t.lse_a), lse_b("lse_b", t.lse_b);
  const Argument o("o", t.o), lse("lse", t.lse);
  const bool packed = o_a.t.rank == 3;
  require_tensor(o_a, packed ? 3 : 4, packed ? "[Tq, Hq, Dv]" : "[B, Hq, Sq, Dv]");
  if (!is_float(o_a.dtype())) reject("o_a: type ", name_of(o_a.dtype()), " must be f64, f32, f16 or bf16");
  describe_part(o_a, lse_a, o_a);
  describe_part(o_b, lse_b, o_a);
  const int64_t dim = o_a.extent(o_a.t.rank - 1);
  require_like_o(o, t.o_a, dim, Written::now);
  if (lse.given()) require_like_lse(lse, t.o_a, Written::now);
  require_disjoint(t);
  MergeProblem p;
  p.memory = memory;
  p.batch = packed ? 1 : o_a.extent(0), p.heads = o_a.extent(1), p.len = o_a.extent(packed ? 0 : 2), p.dim = dim;
  p.o_a = rows_of(o_a, t.o_a.data), p.o_b = rows_of(o_b, t.o_b.data), p.o = rows_of(o, t.o.data);
  p.lse_a = lse_rows_of(lse_a, t.lse_a.data), p.lse_b = lse_rows_of(lse_b, t.lse_b.data);
  if (lse.given()) p.lse = lse_rows_of(lse, t.lse.data);
  return p;
}

}  // namespace cuflash
