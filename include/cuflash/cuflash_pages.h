/* cuflash: which page of a KV cache holds which token. The C ABI; page_pool.h is its C++ form.
 *
 * A pool divides a fixed number of pages among sequences that grow, share common prefixes, and are trimmed or released.
 * It is bookkeeping in host memory and never sees K or V. It produces the block table and lengths for the attention
 * call, and tells the caller which pages to copy.
 *
 * Token t of a sequence's cache is row t % page_size of page pages[t / page_size]. Once written, a token is never
 * moved, except by the copy that append() requests. docs/cache.md describes the order of the steps, and what trimming
 * keeps.
 *
 * A call that fails changes nothing, and neither does an append that does not fit. The same calls in the same order
 * give the same pages. Only create, statistics, check and error messages allocate. A pool is not thread-safe: make one
 * call at a time, and lock if several threads use it.
 */
#ifndef CUFLASH_CUFLASH_PAGES_H_
#define CUFLASH_CUFLASH_PAGES_H_

#include <cuflash/cuflash.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuflash_page_pool cuflash_page_pool;

typedef struct cuflash_page_pool_config {
  size_t struct_size;
  int64_t pages;                  /* 1 to 2^31 - 1: the budget, pages 0 .. pages - 1 of the cache */
  int64_t page_size;              /* tokens per page, 1 to 2^31 - 1 */
  int64_t max_sequences;          /* alive at the same time, 1 to 2^31 - 1 */
  int64_t max_pages_per_sequence; /* 0: as many as the pool has. The tables take max_sequences times this times 4 bytes,
                                   * of which only the used part is touched. Times page_size it is at most 2^31 - 1,
                                   * because lengths are int32 */
} cuflash_page_pool_config;

/* A handle to a sequence of one pool. It may be copied and kept: after its release, or in another pool, using it is an
 * error and never refers to a different sequence. All zeros: no sequence. */
typedef struct cuflash_sequence {
  uint64_t serial; /* unique in the process; 0: none */
  int64_t slot;
} cuflash_sequence;

typedef enum cuflash_fit {
  CUFLASH_FITS = 0,
  CUFLASH_POOL_FULL = 1,    /* not enough free pages: release, trim or truncate others first */
  CUFLASH_SEQUENCE_FULL = 2 /* it would have more than max_pages_per_sequence pages: trim or truncate it */
} cuflash_fit;

/* The caller must copy the first `tokens` rows of page `source` to page `destination`. */
typedef struct cuflash_page_copy {
  int32_t source, destination;
  int32_t tokens; /* 0: nothing to copy */
} cuflash_page_copy;

typedef struct cuflash_append_result {
  int32_t fit;            /* cuflash_fit; unless it is CUFLASH_FITS, nothing has changed */
  int32_t pages;          /* pages that it takes from the pool, or would have taken; 0 for CUFLASH_SEQUENCE_FULL */
  int64_t missing_pages;  /* CUFLASH_POOL_FULL: how many more pages would have to be free; CUFLASH_SEQUENCE_FULL: how
                           * many pages the sequence would have beyond max_pages_per_sequence */
  cuflash_page_copy copy; /* the last page was shared: make this copy before writing the new tokens */
} cuflash_append_result;

typedef struct cuflash_trim_result {
  int64_t first_page, pages; /* entries first_page .. first_page + pages - 1 were removed from the sequence's table */
  int64_t freed_pages;       /* how many of those pages no other sequence holds; they are free now */
} cuflash_trim_result;

/* A sequence holds its tokens 0 .. sinks - 1 and sinks + dropped .. position - 1. Cache index t is position t below
 * sinks, otherwise position t + dropped. Without a gap, sinks and dropped are 0. */
typedef struct cuflash_sequence_state {
  int64_t tokens;   /* in the cache: its entry of cache_seqlens */
  int64_t pages;    /* in its table */
  int64_t sinks;    /* tokens before the gap that trimming left */
  int64_t dropped;  /* tokens in the gap */
  int64_t position; /* position of the next token: tokens + dropped */
} cuflash_sequence_state;

typedef struct cuflash_page_pool_stats {
  int64_t pages, used_pages, free_pages;
  int64_t shared_pages;  /* used pages held by more than one sequence */
  int64_t table_entries; /* pages summed over all sequences: used_pages if nothing were shared */
  int64_t sequences;
  int64_t tokens;        /* summed over all sequences; a shared token counts for each */
  int64_t wasted_tokens; /* rows of used pages that no sequence reads: the ends of last pages */
} cuflash_page_pool_stats;

static inline void cuflash_page_pool_config_init(cuflash_page_pool_config* c) {
  memset(c, 0, sizeof *c);
  c->struct_size = sizeof *c;
}

CUFLASH_API cuflash_status cuflash_page_pool_create(const cuflash_page_pool_config* config, cuflash_page_pool** pool);
CUFLASH_API void cuflash_page_pool_destroy(cuflash_page_pool* pool); /* NULL is fine */

/* Starts an empty sequence; none (serial 0) if max_sequences are alive. */
CUFLASH_API cuflash_status cuflash_page_pool_start(cuflash_page_pool* pool, cuflash_sequence* sequence);

/* Starts a sequence with the first `tokens` cached tokens of parent (-1: all) on the same pages. It takes no page, only
 * time proportional to their number. None (serial 0) if max_sequences are alive. */
CUFLASH_API cuflash_status cuflash_page_pool_fork(cuflash_page_pool* pool, cuflash_sequence parent, int64_t tokens,
                                                  cuflash_sequence* child);

/* Makes room for `tokens` more tokens at the end, all or none, which the caller then writes. Constant time apart from
 * the pages taken. */
CUFLASH_API cuflash_status cuflash_page_pool_append(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t tokens,
                                                    cuflash_append_result* result);

/* Keeps the first `tokens` cached tokens, for example after draft tokens were rejected. The next token gets the
 * position of the first removed one. */
CUFLASH_API cuflash_status cuflash_page_pool_truncate(cuflash_page_pool* pool, cuflash_sequence sequence,
                                                      int64_t tokens);

/* Drops all complete pages that hold none of the first `sinks` and none of the last `window` tokens of the sequence.
 * Pages at both edges of the gap stay readable: up to page_size - 1 extra tokens on each side. */
CUFLASH_API cuflash_status cuflash_page_pool_trim(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t sinks,
                                                  int64_t window, cuflash_trim_result* result);

/* Ends the sequence and frees the pages that no other sequence holds. */
CUFLASH_API cuflash_status cuflash_page_pool_release(cuflash_page_pool* pool, cuflash_sequence sequence);

CUFLASH_API cuflash_status cuflash_page_pool_state(const cuflash_page_pool* pool, cuflash_sequence sequence,
                                                   cuflash_sequence_state* state);
CUFLASH_API cuflash_status cuflash_page_pool_statistics(const cuflash_page_pool* pool, cuflash_page_pool_stats* stats);

/* Writes one row for each of `count` sequences into an i32 tensor [count, columns] in host memory: its pages, then
 * `unused` in the remaining columns. The tensor must not share memory with the list of sequences. */
CUFLASH_API cuflash_status cuflash_page_pool_write_block_table(const cuflash_page_pool* pool,
                                                               const cuflash_sequence* sequences, int64_t count,
                                                               const cuflash_mutable_tensor* block_table,
                                                               int32_t unused);
/* Writes the number of cached tokens of each sequence into an i32 tensor [count] in host memory. */
CUFLASH_API cuflash_status cuflash_page_pool_write_lengths(const cuflash_page_pool* pool,
                                                           const cuflash_sequence* sequences, int64_t count,
                                                           const cuflash_mutable_tensor* cache_seqlens);

/* Returns CUFLASH_INTERNAL, with a message, if the pool is inconsistent. Visits everything: meant for tests. */
CUFLASH_API cuflash_status cuflash_page_pool_check(const cuflash_page_pool* pool);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CUFLASH_CUFLASH_PAGES_H_ */
