/* cuflash: which page of a KV cache holds which token. The C ABI; page_pool.h is the same for C++.
 *
 * A pool divides a fixed number of pages among sequences that grow, share what they have in common, and are trimmed or
 * released. It is bookkeeping in host memory: it never sees K or V. What it decides reaches the attention call as a
 * block table and lengths, and the caller as copies of pages to be made.
 *
 * Token t of a sequence's cache is row t % page_size of page pages[t / page_size]. Written once, a token is never moved,
 * except by the copy that append() asks for. docs/cache.md has the order of the steps, and what trimming keeps.
 *
 * A call that fails has changed nothing, and so has an append that does not fit. The same calls in the same order give
 * the same pages. Only create, statistics, check and the messages of errors allocate. A pool is not thread-safe: one call
 * at a time, lock where several threads use it.
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
  int64_t page_size;              /* tokens of a page, 1 to 2^31 - 1 */
  int64_t max_sequences;          /* 1 to 2^31 - 1, alive at one time */
  int64_t max_pages_per_sequence; /* 0: as many as there are. The tables take max_sequences times this times 4 bytes, of
                                   * which only what is used is touched. Times page_size at most 2^31 - 1: lengths are
                                   * int32 */
} cuflash_page_pool_config;

/* A sequence of one pool. It may be copied and kept: after its release, and in another pool, it is an error and never
 * somebody else's sequence. One of zeros is none. */
typedef struct cuflash_sequence {
  uint64_t serial; /* unique in the process; 0: none */
  int64_t slot;
} cuflash_sequence;

typedef enum cuflash_fit {
  CUFLASH_FITS = 0,
  CUFLASH_POOL_FULL = 1,    /* not enough free pages: release, trim or truncate others first */
  CUFLASH_SEQUENCE_FULL = 2 /* it would have more than max_pages_per_sequence pages: trim or truncate it */
} cuflash_fit;

/* The first `tokens` rows of page `source` are to be copied to page `destination`. */
typedef struct cuflash_page_copy {
  int32_t source, destination;
  int32_t tokens; /* 0: nothing is to be copied */
} cuflash_page_copy;

typedef struct cuflash_append_result {
  int32_t fit;            /* cuflash_fit; where it is not CUFLASH_FITS nothing has changed */
  int32_t pages;          /* pages that it takes from the pool, or would have taken; 0 for CUFLASH_SEQUENCE_FULL */
  int64_t missing_pages;  /* CUFLASH_POOL_FULL: how many more would have to be free; CUFLASH_SEQUENCE_FULL: how many the
                           * sequence would have beyond max_pages_per_sequence */
  cuflash_page_copy copy; /* the last page was shared: make this copy before writing the new tokens */
} cuflash_append_result;

typedef struct cuflash_trim_result {
  int64_t first_page, pages; /* the entries first_page .. first_page + pages - 1 are gone from the sequence's table */
  int64_t freed_pages;       /* of those, pages that no other sequence holds: free now */
} cuflash_trim_result;

/* What a sequence holds: its tokens 0 .. sinks - 1 and sinks + dropped .. position - 1. Cache index t is position t where
 * t < sinks, otherwise t + dropped. Without a gap sinks and dropped are 0. */
typedef struct cuflash_sequence_state {
  int64_t tokens;   /* in the cache: its entry of cache_seqlens */
  int64_t pages;    /* in its table */
  int64_t sinks;    /* tokens before the gap that trimming left */
  int64_t dropped;  /* tokens in the gap */
  int64_t position; /* of the next token: tokens + dropped */
} cuflash_sequence_state;

typedef struct cuflash_page_pool_stats {
  int64_t pages, used_pages, free_pages;
  int64_t shared_pages;  /* of the used ones, those held by more than one sequence */
  int64_t table_entries; /* pages of all sequences: used_pages if nothing were shared */
  int64_t sequences;
  int64_t tokens;        /* of all sequences, a shared one counted by each */
  int64_t wasted_tokens; /* rows of used pages that no sequence reads: the ends of last pages */
} cuflash_page_pool_stats;

static inline void cuflash_page_pool_config_init(cuflash_page_pool_config* c) {
  memset(c, 0, sizeof *c);
  c->struct_size = sizeof *c;
}

CUFLASH_API cuflash_status cuflash_page_pool_create(const cuflash_page_pool_config* config, cuflash_page_pool** pool);
CUFLASH_API void cuflash_page_pool_destroy(cuflash_page_pool* pool); /* NULL is fine */

/* An empty sequence; none (serial 0) where max_sequences are alive. */
CUFLASH_API cuflash_status cuflash_page_pool_start(cuflash_page_pool* pool, cuflash_sequence* sequence);

/* A sequence with the first `tokens` cached tokens of parent, or all for -1, on the same pages: takes no page, only time
 * in proportion to them. None (serial 0) where max_sequences are alive. */
CUFLASH_API cuflash_status cuflash_page_pool_fork(cuflash_page_pool* pool, cuflash_sequence parent, int64_t tokens,
                                                  cuflash_sequence* child);

/* Makes room for `tokens` more at the end, all or none, for the caller to write. Constant time but for the pages taken. */
CUFLASH_API cuflash_status cuflash_page_pool_append(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t tokens,
                                                    cuflash_append_result* result);

/* Keeps the first `tokens` of the cached tokens, as when drafted tokens are refused. The next token gets the position of
 * the first one that went. */
CUFLASH_API cuflash_status cuflash_page_pool_truncate(cuflash_page_pool* pool, cuflash_sequence sequence,
                                                      int64_t tokens);

/* Drops the whole pages that hold neither one of the first `sinks` nor one of the last `window` tokens of the sequence.
 * What remains of pages at both edges of the gap stays readable: up to page_size - 1 tokens on each side. */
CUFLASH_API cuflash_status cuflash_page_pool_trim(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t sinks,
                                                  int64_t window, cuflash_trim_result* result);

/* The sequence ends; pages that no other one holds are free. */
CUFLASH_API cuflash_status cuflash_page_pool_release(cuflash_page_pool* pool, cuflash_sequence sequence);

CUFLASH_API cuflash_status cuflash_page_pool_state(const cuflash_page_pool* pool, cuflash_sequence sequence,
                                                   cuflash_sequence_state* state);
CUFLASH_API cuflash_status cuflash_page_pool_statistics(const cuflash_page_pool* pool, cuflash_page_pool_stats* stats);

/* One row for each of `count` sequences into an i32 tensor [count, columns] in host memory: its pages, and `unused` in
 * the columns behind them. The tensor may not share memory with the list of sequences. */
CUFLASH_API cuflash_status cuflash_page_pool_write_block_table(const cuflash_page_pool* pool,
                                                               const cuflash_sequence* sequences, int64_t count,
                                                               const cuflash_mutable_tensor* block_table,
                                                               int32_t unused);
/* The cached tokens of each into an i32 tensor [count] in host memory. */
CUFLASH_API cuflash_status cuflash_page_pool_write_lengths(const cuflash_page_pool* pool,
                                                           const cuflash_sequence* sequences, int64_t count,
                                                           const cuflash_mutable_tensor* cache_seqlens);

/* CUFLASH_INTERNAL, with what is wrong, where the pool contradicts itself. Looks at everything: for tests. */
CUFLASH_API cuflash_status cuflash_page_pool_check(const cuflash_page_pool* pool);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CUFLASH_CUFLASH_PAGES_H_ */
