// What is sent to the kernel of attention over a KV cache, and to that which merges two results.
#pragma once

#include "params.h"

namespace cuflash {

// Which rows of k and v are a sequence's keys: see src/problem/problem.h, CachedKeys.
struct CacheView {
  const int* rows;     // [batch]: before the append, left padding counted
  const int* leftpad;  // [batch], or null
  const int* entry;    // [batch], or null
  const int* table;    // paged: [batch][table_stride]
  int64 table_stride;
  int64 entries;  // of k and v: entries, or pages
  int page_size;  // 0: contiguous
  int len_new;    // rows that are appended: of a dense tensor, or an upper bound
  int64 total_new;
  const int* cu_new;
  const int* used_new;
};

// Queries and new keys are turned by their positions.
struct RotaryView {
  const void *cos, *sin;  // [positions][dim / 2]; null: nothing is turned
  int element;            // Element of what is stored
  int64 cos_stride, sin_stride, positions;
  int dim;
  int interleaved, one_position;
};

struct KvParams {
  AttentionParams attention;  // k and v are the cache, len_k the rows it has room for
  RowsView o, lse;
  RowsView k_new, v_new;  // may be absent
  int v_column;           // where v is a slice of k's rows: of its first element. New values are then those of k_new
  CacheView cache;
  RotaryView rotary;

  int row_tiles;     // of a sequence and key/value head
  int splits;        // CTAs that may share the keys of one tile of rows
  int eager_splits;  // of these are used as soon as there are least_tiles tiles of keys for each; more by long sequences
  int least_tiles;
  int short_splits;  // of these may be short ones, which start when all others have: see cache/geometry.h

  // The workspace, where there are several splits. A tile of rows has the number that tile_number() gives it.
  uint64* tickets;     // [tile], see cache/ticket.h
  void* split_states;  // [tile][state_rows][split][2] Reals: largest score, sum of weights
  void* split_o;       // [tile][state_rows][split][padded dim_v] Reals
  int state_rows;      // rows that a tile can have
};

// Divides what is below 2^31 by a product and a shift. A division takes several times as long.
struct Divisor {
  unsigned factor;
  int shift;
};

// Where boxes lie, and which are asked for before anything is known of the work: in one line of memory, since params, too, come
// from far. A cache is a table of pages, or of entries that are a page each, or neither: see cache/geometry.h.
struct alignas(64) PrologueLoads {
  const int* rows;   // as in CacheView
  const int* table;  // [batch][table_stride]
  int64 table_stride;
  int page_size;  // 0: a sequence's entry is that of its number, and a tile of keys is one box of it
  Divisor by_page_size;
  int last_row, last_entry;
  int row_tiles;  // as in KvParams
  Divisor by_row_tiles;
  short splits;                                    // of these the first tile of keys is that of their number,
  unsigned char tiles;                             // and so many, with those behind it, are copied
  unsigned char box_bits;                          // a tile has 2^this many boxes
  unsigned char k_head, k_entry, v_head, v_entry;  // 0: a dimension that is repeated, 1: one that is not
};
static_assert(sizeof(PrologueLoads) == 64);

// Keys and values by tensor copies.
struct Sm90KvParams {
  TensorMap k, v;  // [dim, rows of an entry or page, heads, entries or pages]; a repeated dimension has extent 1
  PrologueLoads prologue;
  KvParams cache;
  // So many CTAs push out of L2 what is in it, with all that they copy if that is many tiles: see evict_first_sixteenth.
  int first_wave_ctas, many_tiles;
  int loads_in_flight;  // parts of tiles (keys, values), at most; not fewer than PrologueLoads has
};

struct MergeParams {
  RowsView o_a, lse_a, o_b, lse_b, o, lse;  // lse may be absent
  int64 batch, heads, len;
  int dim;
};

}  // namespace cuflash
