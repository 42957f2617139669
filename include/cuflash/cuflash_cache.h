/* cuflash: attention over a KV cache, and merging of partial results. The C ABI; cached_attention.h is its C++ form.
 *
 * One call appends new keys and values to a cache, applies the rotary embedding to the new keys and the queries, and
 * computes attention of the queries over the whole cache. The queries are the last positions of their sequence after
 * the append. A call does not allocate, wait, or read lengths of a CUDA device on the host: it can be captured in a
 * CUDA graph and replayed with other lengths, other block tables and other data. page_pool.h decides which page holds
 * which token.
 */
#ifndef CUFLASH_CUFLASH_CACHE_H_
#define CUFLASH_CUFLASH_CACHE_H_

#include <cuflash/cuflash.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The cache, the rows to append, and the outputs.
 *
 * Contiguous: k [E, Hk, S, D], v [E, Hk, S, Dv] with room for S tokens in each of E entries; any order by strides.
 * Paged:      k [pages, Hk, page_size, D], v [pages, Hk, page_size, Dv] and a block table. Pages may have any size.
 *
 * Sequence b holds rows leftpad[b] .. seqlens[b] - 1 of its entry, or of its concatenated pages. New rows are written
 * after them, from row seqlens[b] on. The position of row r is r - leftpad[b]; the queries of a sequence are at its
 * last positions after the append, and causal and window compare positions.
 *
 * Rows and pages that hold no token of a sequence, and pages that the window hides from all queries, are neither read
 * nor written: they may contain anything, and so may their entries of the block table.
 *
 * Sequences may share entries and pages that they only read. A row that a call appends belongs to one sequence: no other
 * sequence may append to it or see it in the same call. In host memory, a call that violates this is rejected; with
 * batch_idx, it is rejected whenever two sequences share an entry and one of them appends. Tables and indices in device
 * memory are not read on the host: there the result of such a call is undefined, unless check_lengths of
 * cuflash_execution is set, which detects it. */
typedef struct cuflash_cache_tensors {
  size_t struct_size;
  cuflash_mutable_tensor k, v; /* type of q. The rows of v may be slices of those of k, with the same strides */
  cuflash_tensor seqlens;      /* i32 [B]: rows of each sequence before the append, including left padding */
  cuflash_tensor block_table;  /* optional, i32 [B, max_pages]: row r is in page block_table[b][r / page_size] */
  cuflash_tensor batch_idx;    /* optional, i32 [B], contiguous cache: the entry of each sequence; absent: entry b */
  cuflash_tensor leftpad;      /* optional, i32 [B]: leading rows that hold no token */

  cuflash_tensor k_new, v_new;   /* optional: dense [B, Hk, Sn, D] and [B, Hk, Sn, Dv], or packed [Tn, Hk, D] and
                                  * [Tn, Hk, Dv] with cu_seqlens_new. v_new is absent if v is a slice of k */
  cuflash_tensor cu_seqlens_new; /* packed: i32 [B + 1] */
  cuflash_tensor seqlens_new;    /* optional, dense: i32 [B]: only the first seqlens_new[b] rows exist */
  int64_t max_seqlen_new;        /* packed: an upper bound of the lengths; required on CUDA */

  cuflash_tensor rotary_cos, rotary_sin; /* optional: [positions, R / 2], type of q or f32. The first R elements of each
                                          * query and new key are rotated in f32 (f64 for f64) and rounded to the type
                                          * of q, as if the caller had done so before the call */
  int32_t rotary_interleaved;            /* 0: elements i and i + R / 2 are a pair; otherwise 2 i and 2 i + 1 */
  int32_t rotary_one_position;           /* not 0: all queries of a sequence are rotated like its first one */

  int32_t num_splits; /* ranges of keys that a sequence is split into. 0: chosen to fill the device. With a fixed
                       * number, the result of a row does not depend, in any bit, on the rest of the batch */

  cuflash_mutable_tensor o;   /* as in cuflash_forward_outputs */
  cuflash_mutable_tensor lse; /* optional, likewise */
} cuflash_cache_tensors;

static inline void cuflash_cache_tensors_init(cuflash_cache_tensors* t) {
  memset(t, 0, sizeof *t);
  t->struct_size = sizeof *t;
}

/* attention describes the queries and the scores: q dense (with seqlens_q or not) or packed with cu_seqlens_q, scale,
 * causal, window, softcap, alibi_slopes, sink. Its k, v, their lengths, bias, mask and dropout stay absent. */
CUFLASH_API cuflash_status cuflash_attend_cache(const cuflash_attention* attention, const cuflash_cache_tensors* cache,
                                                const cuflash_execution* execution);
CUFLASH_API cuflash_status cuflash_attend_cache_workspace_size(const cuflash_attention* attention,
                                                               const cuflash_cache_tensors* cache,
                                                               const cuflash_execution* execution, size_t* bytes);
CUFLASH_API cuflash_status cuflash_explain_attend_cache(const cuflash_attention* attention,
                                                        const cuflash_cache_tensors* cache,
                                                        const cuflash_execution* execution, char* text, size_t capacity,
                                                        size_t* needed);

/* Merges two results of the same queries over different keys into the exact result over all of these keys: for shared
 * prefixes, cascades and ring attention. A part without a key has LSE -inf and is ignored. o may be the same view as
 * o_a or o_b, and lse the same view as lse_a or lse_b. */
typedef struct cuflash_merge_tensors {
  size_t struct_size;
  cuflash_tensor o_a, o_b;     /* [B, Hq, Sq, Dv], or packed [Tq, Hq, Dv]: f64, f32, f16 or bf16, both the same */
  cuflash_tensor lse_a, lse_b; /* [B, Hq, Sq], or packed [Hq, Tq]; f32 (f64 for f64) */
  cuflash_mutable_tensor o;    /* shaped as o_a; its type or f32 */
  cuflash_mutable_tensor lse;  /* optional, shaped and typed as lse_a */
} cuflash_merge_tensors;

static inline void cuflash_merge_tensors_init(cuflash_merge_tensors* t) {
  memset(t, 0, sizeof *t);
  t->struct_size = sizeof *t;
}
CUFLASH_API cuflash_status cuflash_merge_states(const cuflash_merge_tensors* tensors,
                                                const cuflash_execution* execution);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CUFLASH_CUFLASH_CACHE_H_ */
