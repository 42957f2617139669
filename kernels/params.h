// Kernel parameters: plain structs shared by host and device. Strides are in elements, offsets are 64-bit.
#pragma once

#include "config.h"
#include "tile_order.h"

namespace cuflash {

constexpr double kLog2e = 1.4426950408889634;

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
  unsigned dropout_threshold;  // of philox.h; 0: nothing is dropped
  uint64* tile_counts;         // null, or {visited, masked, skipped}
};

struct ForwardParams {
  AttentionParams attention;
  RowsView o, lse;
};

// CUtensorMap: a tensor in global memory as cp.async.bulk.tensor sees it. The driver encodes it.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

struct Sm90ForwardParams {
  TensorMap q, k, v;  // [dim, rows, heads, batch]; a broadcast dimension has extent 1
  TensorMap o;        // valid if store_o_by_tma is set
  int store_o_by_tma;
  ForwardParams forward;
  TileOrder tile_order;
  float scale_log2;  // scale * log2(e), the exponent's scale if no option modifies the score
};

}  // namespace cuflash
