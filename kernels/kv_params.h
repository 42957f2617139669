// Params of the kernels over a KV cache, and of the kernel that merges two results.
#pragma once

#include "params.h"

namespace cuflash {

// Which rows of k and v are the keys of a sequence: see CachedKeys in src/problem/problem.h.
struct CacheView {
  const int* rows;     // [batch]: rows before the append, including left padding
  const int* leftpad;  // [batch], or null
  const int* entry;    // [batch], or null
  const int* table;    // paged: [batch][table_stride]
  int64 table_stride;
  int64 entries;  // entries, or pages, of k and v
  int page_size;  // 0: contiguous
  int len_new;    // appended rows of a dense tensor, or their upper bound
  int64 total_new;
  const int* cu_new;
  const int* used_new;
};

// Rotary embedding of queries and new keys.
struct RotaryView {
  const void *cos, *sin;  // [positions][dim / 2]; null: no rotation
  int element;            // Element of cos and sin
  int64 cos_stride, sin_stride, positions;
  int dim;
  int interleaved, one_position;
};

struct KvParams {
  AttentionParams attention;  // k and v are the cache, len_k is its capacity in rows
  RowsView o, lse;
  RowsView k_new, v_new;  // may be absent
  int v_column;           // if v is a slice of k's rows: its first column. New values are then taken from k_new
  CacheView cache;
  RotaryView rotary;

  int row_tiles;    // row tiles per sequence and key/value head
  int splits;       // CTAs that may share the keys of one row tile
  int base_splits;  // splits of a sequence, once each has min_tiles_per_split key tiles; long sequences use more
  int min_tiles_per_split;
  int short_splits;  // how many of `splits` are short and start after all others: see kv/geometry.h

  // The workspace, if there are several splits. tile_number() numbers the row tiles. With an exchange through L2 the
  // layout is that of kv/exchange.h.
  uint64* tickets;     // [tile], see kv/ticket.h
  void* split_states;  // [tile][state_rows][split][2] Reals: row max, row sum
  void* split_o;       // [tile][state_rows][split][padded dim_v] Reals: partial O
  int state_rows;      // the largest number of rows of a tile
};

// The location of TMA boxes, and which boxes the producer loads before the work item is decoded. It fits one cache
// line, because params are fetched from memory, too. The cache is a table of pages, a table of entries that are one
// page each, or has no table: see kv/geometry.h.
struct alignas(64) PrologueLoads {
  const int* rows;   // CacheView::rows
  const int* table;  // [batch][table_stride]
  int64 table_stride;
  int page_size;  // 0: sequence b is entry b, and a key tile is one box of it
  Divisor by_page_size;
  int last_row, last_entry;
  int row_tiles;  // KvParams::row_tiles
  Divisor by_row_tiles;
  short splits;                                    // splits below this prefetch: split n begins with key tile n
  unsigned char tiles;                             // key tiles that each of them prefetches
  unsigned char box_bits;                          // a key tile has 2^box_bits boxes
  unsigned char k_head, k_entry, v_head, v_entry;  // 0: the dimension is repeated, 1: it is not
};
static_assert(sizeof(PrologueLoads) == 64);

// Params of the kernel that loads K and V by TMA.
struct Sm90KvParams {
  TensorMap k, v;  // [dim, rows of an entry or page, heads, entries or pages]; a repeated dimension has extent 1
  PrologueLoads prologue;
  KvParams cache;
  // L2 eviction policy: work items below first_wave_ctas with at least many_tiles key tiles use evict_first_sixteenth.
  int first_wave_ctas, many_tiles;
  int loads_in_flight;  // parts of tiles (keys, values), at most; not fewer than PrologueLoads has
};

// Params of a call over a KV cache that the sm90 forward kernels compute. These kernels read the first member only, in
// which K and V are the cache, and queries and lengths are what kv/prepare.h has written.
struct CachedForwardParams {
  Sm90ForwardParams forward;
  KvParams cache;      // the call itself. Its `splits` CTAs share the rows of a sequence and a key/value head
  RowsView rotated_q;  // in the workspace; absent without rotary embedding
  int* lengths;        // [batch]: keys after the append
  int* first_rows;     // [batch + 1]: zeros, for packed queries: every sequence begins with the first row of its entry
};

struct MergeParams {
  RowsView o_a, lse_a, o_b, lse_b, o, lse;  // lse may be absent
  int64 batch, heads, len;
  int dim;
};

}  // namespace cuflash
