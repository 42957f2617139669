// cuflash: attention over a KV cache, and merging of partial results. The C++ API.
//
//   flash_attention_with_cache({.q = bshd(q, B, 1, Hq, D), .causal = true},
//                              {.k = bshd(k_pages, pages, page_size, Hk, D), .v = bshd(v_pages, pages, page_size, Hk, D),
//                               .seqlens = contiguous(lengths, B), .block_table = contiguous(table, B, max_pages),
//                               .k_new = bshd(k, B, 1, Hk, D), .v_new = bshd(v, B, 1, Hk, D),
//                               .o = bshd(o, B, 1, Hq, D)});
//
// cuflash_cache.h documents every field.
#pragma once

#include <cuflash/cuflash_cache.h>
#include <cuflash/flash_attention.h>

namespace cuflash {

struct CacheTensors {
  Tensor k, v;
  ConstTensor seqlens;
  ConstTensor block_table{}, batch_idx{}, leftpad{};

  ConstTensor k_new{}, v_new{};
  ConstTensor cu_seqlens_new{}, seqlens_new{};
  int64_t max_seqlen_new = 0;

  ConstTensor rotary_cos{}, rotary_sin{};
  bool rotary_interleaved = false;
  bool rotary_one_position = false;

  int32_t num_splits = 0;

  Tensor o;
  Tensor lse{};
};

struct MergeTensors {
  ConstTensor o_a, lse_a, o_b, lse_b;
  Tensor o;
  Tensor lse{};
};

// These conversions are outside detail so that detail::CStructs, declared before these structs, finds them by
// argument-dependent lookup.
inline cuflash_cache_tensors to_c(const CacheTensors& t) {
  using detail::to_c;
  cuflash_cache_tensors c;
  cuflash_cache_tensors_init(&c);
  c.k = to_c(t.k), c.v = to_c(t.v), c.seqlens = to_c(t.seqlens);
  c.block_table = to_c(t.block_table), c.batch_idx = to_c(t.batch_idx), c.leftpad = to_c(t.leftpad);
  c.k_new = to_c(t.k_new), c.v_new = to_c(t.v_new);
  c.cu_seqlens_new = to_c(t.cu_seqlens_new), c.seqlens_new = to_c(t.seqlens_new), c.max_seqlen_new = t.max_seqlen_new;
  c.rotary_cos = to_c(t.rotary_cos), c.rotary_sin = to_c(t.rotary_sin);
  c.rotary_interleaved = t.rotary_interleaved, c.rotary_one_position = t.rotary_one_position;
  c.num_splits = t.num_splits;
  c.o = to_c(t.o), c.lse = to_c(t.lse);
  return c;
}
inline cuflash_merge_tensors to_c(const MergeTensors& t) {
  using detail::to_c;
  cuflash_merge_tensors c;
  cuflash_merge_tensors_init(&c);
  c.o_a = to_c(t.o_a), c.lse_a = to_c(t.lse_a), c.o_b = to_c(t.o_b), c.lse_b = to_c(t.lse_b);
  c.o = to_c(t.o), c.lse = to_c(t.lse);
  return c;
}

inline void flash_attention_with_cache(const Attention& attention, const CacheTensors& cache,
                                       const Execution& execution = {}) {
  const detail::CStructs c(attention, cache, execution);
  detail::check(cuflash_attend_cache(&c.attention, &c.tensors, &c.execution));
}

inline size_t workspace_size(const Attention& attention, const CacheTensors& cache, const Execution& execution = {}) {
  const detail::CStructs c(attention, cache, execution);
  size_t bytes = 0;
  detail::check(cuflash_attend_cache_workspace_size(&c.attention, &c.tensors, &c.execution, &bytes));
  return bytes;
}

inline std::string explain(const Attention& attention, const CacheTensors& cache, const Execution& execution = {}) {
  return detail::explain(cuflash_explain_attend_cache, attention, cache, execution);
}

inline void merge_states(const MergeTensors& tensors, const Execution& execution = {}) {
  const auto c_tensors = to_c(tensors);
  const auto c_execution = detail::to_c(execution);
  detail::check(cuflash_merge_states(&c_tensors, &c_execution));
}

}  // namespace cuflash
