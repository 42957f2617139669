// What is sent to a kernel: plain structs, shared by host and device. Strides count elements, offsets are 64-bit.
#pragma once

#include "config.h"
#include "tile_order.h"

namespace cuflash {

constexpr double kLog2e = 1.4426950408889634;

using int64 = long long;
using uint64 = unsigned long long;

// A matrix of rows for every (batch, head); a repeated dimension has stride 0. Packed tensors have batch stride 0.
struct RowsView {
  void* data;  // null: absent
  int64 batch_stride, head_stride, row_stride;
  int element;  // Element of what is stored; a mask tensor has bytes, whatever stands here
};

struct HeadView {
  void* data;
  int64 batch_stride, head_stride;
  int element;
};

// Lengths, window and options: what forward and backward share.
struct AttentionParams {
  RowsView q, k, v;
  RowsView bias, mask;  // rows of len_k
  HeadView slopes, sink;
  int batch, heads_q, heads_k;
  int group;         // query heads that share keys
  int len_q, len_k;  // of a dense tensor; packed: max_seqlen
  int dim_qk, dim_v;
  int64 window_left, window_right;
  int top_left;
  const int* cu_q;  // packed: [batch + 1]; total_* rows exist, whatever the lengths say
  const int* cu_k;
  const int* used_q;  // padded: [batch]
  const int* used_k;
  int64 total_q, total_k;
  double scale, softcap;
  double keep_scale;  // 1 / (1 - dropout_p)
  uint64 dropout_seed, dropout_offset;
  unsigned dropout_threshold;  // kept where the random word is at least this; 0: no dropout
  uint64* tile_counts;         // null, or {visited, masked, skipped}
};

struct ForwardParams {
  AttentionParams attention;
  RowsView o, lse;
};

// A tensor in global memory as copy instructions know it (CUtensorMap): made by the driver, read by the hardware.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

struct Sm90ForwardParams {
  TensorMap q, k, v;  // [dim, rows, heads, batch]; a repeated dimension has extent 1
  TensorMap o;        // unless store_o_by_tma is 0: rows are not stored by copies
  int store_o_by_tma;
  ForwardParams forward;
  TileOrder tile_order;
  float scale_log2;  // scale * log2(e): scores that no option changes times this are powers of two
};

}  // namespace cuflash
