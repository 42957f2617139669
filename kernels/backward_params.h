// Parameters of the backward kernels, one struct for all of them.
#pragma once

#include "params.h"

namespace cuflash {

// A key tile of a packed sequence.
struct KeyTile {
  int b, tile;
};

constexpr unsigned kAllPrepared = 0xffffffffu;  // prepared_tiles of a head that is ready before the main kernel begins

struct BackwardParams {
  AttentionParams attention;
  RowsView o, lse, dout, dlse;             // dlse may be absent
  RowsView dq, dk, dv, dbias;              // each may be absent
  HeadView dsink;                          // may be absent
  int bias_batch, bias_heads, bias_len_q;  // extents of dbias: 1 for a dimension that is reduced

  // Workspace. Query tiles are indexed by query_tile().
  int64 packed_tiles;  // query tiles per head of packed tensors
  void* row_stats;     // [tile][LSE in units of log2, delta, flags] in Reals
  void* dq_accum;      // [tile][dq_rows x dim_qk], in the order of accum_block(); null: dQ is not wanted
  int dq_rows;         // tile_q, or less for short sequences
  // With kKeepsDq, instead of dq_accum: the same tiles for the heads that a CTA works on, [CTA][head of a group][tile].
  // Nothing is cleared: the first key tile that a query tile sees begins its sums.
  float* kept_dq;
  unsigned* dq_semaphore;  // ordered: [tile], number of key tiles already added
  // ordered or persistent: index of the next key tile. sm90: then of the next task of dBias, and for each of its tiles
  // that have several parts the number of parts that are done.
  uint64* ticket;

  int interleaved_heads;  // KV heads whose key tiles are interleaved, so that they share the L2 cache
  int tail_heads;         // size of the last such group; the heads before it are a multiple of interleaved_heads
  int counts_in_bias;     // the bias kernel counts visited tiles, since no main kernel runs

  // sm90: a key tile may be several tasks, each with some query heads of its group or some of their query tiles. Their
  // dK and dV are summed in the workspace, in tiles of 64 keys that are indexed by key_tile().
  int head_parts, query_parts;
  float *dk_accum, *dv_accum;  // [key tile][64 x dim] in the order of accum_block(); null: one task per key tile
  int64 packed_key_tiles;      // key tiles per KV head of packed tensors
  int64 part_tiles;  // key tiles of all heads if every part has separate sums; 0: all parts add to the same sums
  int64 zero_bytes;  // bytes of both sums that the prepare kernel zeroes; a multiple of 16
  int64 zero_bytes_per_cta;     // bytes that one of its CTAs zeroes; a multiple of 16
  int listed_keys, max_listed;  // keys of a listed tile; capacity of the list
  uint64 first_ticket;          // value of the ticket after the prepare kernel
  int64 last_paired_task;       // second task of CTA 0, if tasks are paired (write_next_task); otherwise 0
  // sm90: the (batch, head) pairs that share a tile of dBias may be divided into several tasks, which have separate
  // sums.
  int dbias_parts, dbias_counts;  // counts: number of tiles, 0 with one part
  float* dbias_sums;              // [task][sums of a tile]
  // sm90, with a loader: [query head of all batches], number of tasks that have added to its dQ; null: not counted. The
  // finish kernel converts a head when all of its tasks are done, before the main kernel ends.
  unsigned* dq_tasks;
  // sm90, with a loader: [query head of all batches], number of its query tiles that are prepared. The prepare kernel
  // prepares the first prepared_heads heads of all batches, the main kernel prepares the others (DeferredPrepare) and
  // takes their query tiles by ticket in the order of query_tile().
  unsigned *prepared_tiles, *prepare_ticket;
  int64 prepared_heads;
  int task_keys;         // keys of a task
  KeyTile* key_tiles;    // packed: all key tiles, longest sequence first, behind an element whose b is their number
  MaskLists mask_lists;  // with a mask tensor: the query tiles of every key tile
};

// Factors of the options in the scores and gradients of the sm90 kernels; 0 for an option that the call does not have.
struct ScoreFactors {
  float dots;          // 1 / scale_log2
  float softcap_log2;  // softcap * log2(e): the exponent is this times the tanh
  float keep;          // 1 / (1 - dropout_p)
  CapDerivative cap;   // for kernels with BackwardOptions::kPolynomialSoftcap
};

// The portable part comes first, so that kernels that only know BackwardParams take the same struct.
struct Sm90BackwardParams {
  BackwardParams backward;
  float scale_log2;         // scale * log2(e), the exponent's scale
  ScoreFactors factors;     // factors of the score options
  TensorMap q, k, v, dout;  // [dim, rows, heads, batch]; a broadcast dimension has extent 1
  TensorMap row_stats;      // [row_stats_size, tiles]
  TensorMap bias;           // [keys, queries, heads, batch], if the call has one
  TensorMap mask;           // bits of the mask summary, as in Sm90ForwardParams
  // Used by the dQ and dBias kernels, if they run.
  TensorMap dq_k, dq_v;     // K and V with boxes of 64 rows
  TileOrder tile_order;     // schedule of the dQ kernel
  int counts_in_dq;         // the dQ kernel counts visited tiles, since no main kernel runs
  MaskLists dq_mask_lists;  // with a mask tensor: the key tiles of every query tile
};

}  // namespace cuflash
