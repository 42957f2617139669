// Arrays and options of a call over a KV cache -> the library's structs -> one call.
#include <cuflash/cuflash_cache.h>

#include "execute.h"

namespace cuflash::python {
namespace {

cuflash_attention attention_of(Arrays& arrays, const CacheArrays& a, const CacheOptions& o) {
  cuflash_attention t;
  cuflash_attention_init(&t);
  arrays.rows(t.q, a.q, "q");
  t.scale = o.scale.value_or(0), t.has_scale = o.scale.has_value();
  t.causal = o.causal, t.window_left = o.window_left, t.window_right = o.window_right, t.softcap = o.softcap;
  arrays.input(t.alibi_slopes, a.alibi_slopes, "alibi_slopes"), arrays.input(t.sink, a.sink, "sink");
  arrays.input(t.cu_seqlens_q, a.cu_seqlens_q, "cu_seqlens_q"), arrays.input(t.seqlens_q, a.seqlens_q, "seqlens_q");
  t.max_seqlen_q = o.max_seqlen_q;
  return t;
}

cuflash_cache_tensors tensors_of(Arrays& arrays, const CacheArrays& a, const CacheOptions& o) {
  cuflash_cache_tensors t;
  cuflash_cache_tensors_init(&t);
  const bool written = !a.k.is_none();
  arrays.cache(t.k, a.k_cache, "k_cache", written), arrays.cache(t.v, a.v_cache, "v_cache", written);
  arrays.input(t.seqlens, a.cache_seqlens, "cache_seqlens");
  arrays.input(t.block_table, a.block_table, "block_table");
  arrays.input(t.batch_idx, a.cache_batch_idx, "cache_batch_idx");
  arrays.input(t.leftpad, a.cache_leftpad, "cache_leftpad");
  arrays.rows(t.k_new, a.k, "k"), arrays.rows(t.v_new, a.v, "v");
  arrays.input(t.cu_seqlens_new, a.cu_seqlens_new, "cu_seqlens_new");
  arrays.input(t.seqlens_new, a.seqlens_new, "seqlens_new");
  t.max_seqlen_new = o.max_seqlen_new;
  arrays.input(t.rotary_cos, a.rotary_cos, "rotary_cos"), arrays.input(t.rotary_sin, a.rotary_sin, "rotary_sin");
  t.rotary_interleaved = o.rotary_interleaved, t.rotary_one_position = o.rotary_one_position;
  t.num_splits = o.num_splits;
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  return t;
}

}  // namespace

void attend_cache(const CacheArrays& a, const CacheOptions& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a, o);
  const cuflash_cache_tensors tensors = tensors_of(arrays, a, o);
  execute(arrays, o, attention, tensors, cuflash_attend_cache_workspace_size, cuflash_attend_cache,
          {o.layout, Words::cache});
}

std::string explain_attend_cache(const CacheArrays& a, const CacheOptions& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a, o);
  const cuflash_cache_tensors tensors = tensors_of(arrays, a, o);
  return explain(arrays, o, attention, tensors, cuflash_explain_attend_cache, {o.layout, Words::cache});
}

void merge_states(const MergeArrays& a, const MergeOptions& o) {
  Arrays arrays(o.layout, o.stream);
  cuflash_merge_tensors t;
  cuflash_merge_tensors_init(&t);
  arrays.rows(t.o_a, a.o_a, "o_a"), arrays.input(t.lse_a, a.lse_a, "lse_a");
  arrays.rows(t.o_b, a.o_b, "o_b"), arrays.input(t.lse_b, a.lse_b, "lse_b");
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  const cuflash_execution execution = execution_of(arrays, o);
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = cuflash_merge_states(&t, &execution);
  }
  check(status, {o.layout});
}

}  // namespace cuflash::python
