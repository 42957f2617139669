// Every argument and option of a call, listed once. The structs of call.h and xla_call.h, the arguments of _core, the
// attributes of an XLA call and the assignments to the library's structs are generated from these lists.
// python/cuflash/_options.py has the same tables for Python; tests/python/package/test_options.py compares the two.
//
// A list calls the macro that it is given with each of its entries.
#pragma once

// X(name)
#define CUFLASH_FORWARD_ARRAYS(X) X(q) X(k) X(v) X(out) X(lse)
#define CUFLASH_BACKWARD_ARRAYS(X) X(q) X(k) X(v) X(out) X(lse) X(dout) X(dlse) X(dq) X(dk) X(dv) X(dbias) X(dsink)
#define CUFLASH_MERGE_ARRAYS(X) X(o_a) X(lse_a) X(o_b) X(lse_b) X(out) X(lse)
#define CUFLASH_CACHE_CALL_ARRAYS(X) X(q) X(k_cache) X(v_cache) X(k) X(v) X(out) X(lse)

// The optional arrays of attention. X(name, kind): kind is a Kind of xla_call.cpp.
#define CUFLASH_ATTENTION_ARRAYS(X)   \
  X(alibi_slopes, per_batch_and_head) \
  X(bias, scores)                     \
  X(mask, scores)                     \
  X(sink, vector)                     \
  X(cu_seqlens_q, vector)             \
  X(cu_seqlens_k, vector)             \
  X(seqlens_q, vector)                \
  X(seqlens_k, vector)

// The options of attention that are not arrays, except the layout. SAME(type, name, default): the library's struct has
// a member of this name. MAPPED(type, name, default): it has others, which attention.cpp and xla_call.cpp set by hand.
#define CUFLASH_ATTENTION_OPTIONS(SAME, MAPPED) \
  MAPPED(std::optional<double>, scale, {})      \
  SAME(bool, causal, {})                        \
  MAPPED(bool, top_left, {})                    \
  SAME(int64_t, window_left, -1)                \
  SAME(int64_t, window_right, -1)               \
  SAME(double, softcap, {})                     \
  SAME(double, dropout_p, {})                   \
  SAME(uint64_t, dropout_seed, {})              \
  SAME(uint64_t, dropout_offset, {})            \
  SAME(int64_t, max_seqlen_q, {})               \
  SAME(int64_t, max_seqlen_k, {})

// The arrays of a call over a KV cache that CUFLASH_CACHE_CALL_ARRAYS lacks. CACHE(name, member): a member of
// cuflash_cache_tensors. ATTENTION(name, member): a member of cuflash_attention.
#define CUFLASH_CACHE_ARRAYS(CACHE, ATTENTION) \
  CACHE(cache_seqlens, seqlens)                \
  CACHE(block_table, block_table)              \
  CACHE(cache_batch_idx, batch_idx)            \
  CACHE(cache_leftpad, leftpad)                \
  CACHE(cu_seqlens_new, cu_seqlens_new)        \
  CACHE(seqlens_new, seqlens_new)              \
  CACHE(rotary_cos, rotary_cos)                \
  CACHE(rotary_sin, rotary_sin)                \
  ATTENTION(alibi_slopes, alibi_slopes)        \
  ATTENTION(sink, sink)                        \
  ATTENTION(cu_seqlens_q, cu_seqlens_q)        \
  ATTENTION(seqlens_q, seqlens_q)

// The options of such a call that are not arrays, except the layout. CACHE and ATTENTION(type, name, default): a member
// of this name of either struct. MAPPED: as above.
#define CUFLASH_CACHE_OPTIONS(CACHE, ATTENTION, MAPPED) \
  MAPPED(std::optional<double>, scale, {})              \
  ATTENTION(bool, causal, {})                           \
  ATTENTION(int64_t, window_left, -1)                   \
  ATTENTION(int64_t, window_right, -1)                  \
  ATTENTION(double, softcap, {})                        \
  ATTENTION(int64_t, max_seqlen_q, {})                  \
  CACHE(int64_t, max_seqlen_new, {})                    \
  CACHE(bool, rotary_interleaved, {})                   \
  CACHE(bool, rotary_one_position, {})                  \
  CACHE(int32_t, num_splits, {})

// Expands to nothing: skips entries of a list, or counts them.
#define CUFLASH_NOTHING(...)
#define CUFLASH_COUNT(...) +1
