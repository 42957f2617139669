// What is sent to the kernels of backward: one struct for all of them.
#pragma once

#include "params.h"

namespace cuflash {

struct BackwardParams {
  AttentionParams attention;
  RowsView o, lse, dout, dlse;             // dlse may be absent
  RowsView dq, dk, dv, dbias;              // each may be absent
  HeadView dsink;                          // may be absent
  int bias_batch, bias_heads, bias_len_q;  // extents of dbias: 1 where it is summed

  // The workspace. A tile of queries of one head has the number that query_tile() gives it.
  int64 packed_tiles;      // of one head of packed tensors
  void* row_stats;         // [tile][LSE in units of log2, delta, whether a row is not finite] in Reals
  void* dq_accum;          // [tile][dq_rows x dim_qk], in the order of sum_block(); null: dQ was not asked for
  int dq_rows;             // tile_q, or what short sequences need of it
  unsigned* dq_semaphore;  // ordered: [tile], how many tiles of keys have been added
  uint64* ticket;          // ordered, or CTAs that stay: the next tile of keys to take

  int heads_together;  // key/value heads whose tiles of keys are worked on side by side: they share the L2 cache
  int heads_at_end;    // the last of them, side by side; those before are a multiple of heads_together
  int counts_in_bias;  // no main kernel runs, so the bias kernel counts the tiles it visits
};

// What all kernels of backward take stands first: those that know nothing of the rest get the same struct.
struct Sm90BackwardParams {
  BackwardParams backward;
  float scale_log2;         // scale * log2(e): scores times this are powers of two
  TensorMap q, k, v, dout;  // [dim, rows, heads, batch]; a repeated dimension has extent 1
  TensorMap row_stats;      // [row_stats_size, tiles]
  // Of the kernel for dQ alone, where it runs.
  TensorMap dq_k, dq_v;  // in the tiles over which its queries walk
  TileOrder tile_order;
  int counts_in_dq;  // no main kernel runs, so this one counts the tiles that it visits
};

}  // namespace cuflash
