// Kernel parameters: plain structs shared by host and device. Strides are in elements, offsets are 64-bit.
#pragma once

#include "cap_polynomial.h"
#include "config.h"
#include "mask_summary.h"
#include "tile_order.h"

namespace cuflash {

constexpr double kLog2e = 1.4426950408889634;
constexpr double kTanhArgument = 2 / 0.5;  // 0.5 is the end of a polynomial's range: attn/softcap.h

using int64 = long long;
using uint64 = unsigned long long;

// A matrix of rows for every (batch, head). A broadcast dimension has stride 0; packed tensors have batch stride 0.
struct RowsView {
  void* data;  // null: absent
  int64 batch_stride, head_stride, row_stride;
  int element;  // Element of the stored values; ignored for a mask tensor, which has bytes
};

struct HeadView {
  void* data;
  int64 batch_stride, head_stride;
  int element;
};

// Lengths, window and options, shared by forward and backward.
struct AttentionParams {
  RowsView q, k, v;
  RowsView bias, mask;  // rows of len_k
  HeadView slopes, sink;
  int batch, heads_q, heads_k;
  int group;         // query heads per KV head
  int len_q, len_k;  // lengths of a dense tensor; packed: max_seqlen
  int dim_qk, dim_v;
  int64 window_left, window_right;
  int top_left;
  float tanh_argument;  // softcap of f16 and bf16: dot products times this are arguments of attn/softcap.h; 0: divide
  const int* cu_q;      // packed: [batch + 1]; total_* rows exist, whatever the lengths say
  const int* cu_k;
  const int* used_q;  // padded: [batch]
  const int* used_k;
  int64 total_q, total_k;
  double scale, softcap;
  double keep_scale;  // 1 / (1 - dropout_p)
  uint64 dropout_seed, dropout_offset;
  DropoutRule dropout_rule;
  uint64* tile_counts;  // null, or {visited, masked, skipped}
  MaskSummary summary;  // summary of `mask`; blocks is null if the kernel reads the tensor itself
};

struct ForwardParams {
  AttentionParams attention;
  RowsView o, lse;
};

// CUtensorMap: a tensor in global memory as cp.async.bulk.tensor sees it. The driver encodes it.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

// Partial results of query tiles whose keys are split over CTAs, in the workspace. Rows are those of O: of all heads
// and batch entries, or of all heads of packed tensors.
struct KeySplits {
  float* o;       // [splits][rows][columns], not normalised
  float* states;  // [splits][rows][2]: row max, row sum
  int64 rows;
  unsigned splits;
  int columns;                      // dim_v, padded
  float scale_log2, natural_scale;  // factors of stored scores: to exponents of 2; to the units of the sink
  int few_readers;                  // whether few CTAs read the same keys (sm90/forward/producer.h)
};

// A query tile of one sequence, for every head.
struct ListedTile {
  int b, q_tile;
};
// Query tiles of sequences whose lengths only the device knows, those with the most visible keys first
// (sm90/lists/tile_list.h).
struct TileList {
  ListedTile* tiles;
  unsigned* count;           // number of listed tiles
  unsigned* next;            // the next ticket: a listed tile of one head
  unsigned heads_per_group;  // heads whose tiles follow each other, so that their keys stay in L2
  int max_key_tiles;         // largest number of key tiles that a query tile may see
};

// Lists of the tiles that a mask tensor shows (sm90/mask_tiles.h), in the workspace.
struct MaskLists {
  int* data;
  int batch_step, head_step;  // list `tile` of (b, h) is number (b * batch_step + h * head_step) * tiles + tile
  int tiles, stride;          // lists of a head; ints of a list
  int blocks;                 // forward: offset in a list of the key blocks of its tiles
  int aligned;                // forward: 1 if query tiles begin at mask boundaries (sm90/forward/mask_aligned_tiling.h)
};

// Divides a number below 2^31 by multiply and shift, several times faster than a division.
struct Divisor {
  unsigned factor;
  int shift;
};

// Where the keys of a KV cache are, with kPagedKeys. Entries that a batch index names are pages of their own.
struct PageTable {
  const int* pages;  // [batch][stride]: the pages of a sequence in order
  int64 stride;
  int page_size;
  Divisor by_page_size;
  int last_row, last_page;
  int box_rows, boxes;  // rows of a TMA box, which divide the page and the key tile, and boxes of a key tile
};

struct Sm90ForwardParams {
  TensorMap q, k, v;  // [dim, rows, heads, batch]; a broadcast dimension has extent 1
  TensorMap o;        // valid if store_o_by_tma is set
  int store_o_by_tma;
  ForwardParams forward;
  TileOrder tile_order;
  float scale_log2;      // scale_log2 of ScoreOptions, unless it is log2(e)
  float fixed_max;       // with kFixedMax: row_max of all rows
  CapPolynomial cap;     // with kFixedMax: the softcap exponent
  TensorMap bias;        // [keys, queries, heads, batch], as q; valid with kTmaBias
  KeySplits splits;      // valid with kSplitKeys
  TileList list;         // valid with kTileList
  TensorMap mask;        // bits of the mask summary: [bytes, queries, heads, 1]
  MaskLists mask_lists;  // with a mask tensor: the key tiles of every query tile
  PageTable pages;       // with kPagedKeys; k and v are then [dim, rows of a page, heads, pages]
};

}  // namespace cuflash
