// A validated request, and the only form in which one reaches a backend. describe.h builds it.
#pragma once

#include <cstdint>
#include <string>

#include "dtype.h"
#include "mask_summary.h"

namespace cuflash {

// A matrix of rows for every (batch, head). Offsets count elements, and a broadcast dimension has stride 0. Packed
// tensors have batch stride 0: their rows are numbered across the whole batch (Sequence::q_begin, k_begin).
template <class Pointer>
struct BasicRows {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  explicit operator bool() const { return data != nullptr; }
  int64_t at(int64_t b, int64_t h, int64_t row) const { return b * batch_stride + h * head_stride + row * row_stride; }
};
using ConstRows = BasicRows<const void*>;
using Rows = BasicRows<void*>;

// One value per head.
template <class Pointer>
struct BasicHeadValues {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int64_t batch_stride = 0, head_stride = 0;

  explicit operator bool() const { return data != nullptr; }
  int64_t at(int64_t b, int64_t h) const { return b * batch_stride + h * head_stride; }
};
using ConstHeadValues = BasicHeadValues<const void*>;
using HeadValues = BasicHeadValues<void*>;

struct Dropout {
  double p = 0;
  uint64_t seed = 0, offset = 0;
};

// Larger than any window that can matter, and far from overflow: lengths stay below 2^31.
inline constexpr int64_t kUnbounded = int64_t{1} << 40;

// Which memory the tensors of a call are in.
struct Memory {
  int cuda_device = -1;  // ordinal of the device; -1: host memory

  bool on_cuda() const { return cuda_device >= 0; }
  bool operator==(const Memory&) const = default;
};

// Where the keys of a sequence are in a KV cache: key j of sequence b is row leftpad[b] + j of its cache entry, or of
// its pages taken in order. The batch stride of k and v then steps from one entry or page to the next.
struct CachedKeys {
  const int32_t* rows = nullptr;     // [batch]: rows before the append, including left padding; null: not a cache
  const int32_t* leftpad = nullptr;  // [batch]
  const int32_t* entry = nullptr;    // [batch], contiguous cache: entry of each sequence; null: entry b
  int64_t entries = 0;               // entries, or pages, of k and v

  const int32_t* table = nullptr;  // [batch][columns], paged; host copies hold only the columns in use
  int64_t table_stride = 0, columns = 0;
  const int64_t* table_rows = nullptr;  // [batch]: column c of b is table[table_rows[b] + c]; null: at b * table_stride
  int64_t page_size = 0;                // 0: contiguous

  int64_t len_new = 0, total_new = 0;  // rows to append per sequence, or a bound; all packed rows
  const int32_t* cu_new = nullptr;     // packed: [batch + 1]
  const int32_t* used_new = nullptr;   // padded: [batch]

  explicit operator bool() const { return rows != nullptr; }
  const int32_t* pages(int64_t b, int64_t column) const {
    return table + ((table_rows ? table_rows[b] : b * table_stride) + column);
  }
};

// Integer arrays are in `memory`, as all tensors are; in host memory they are copies that a Snapshot owns.
struct Problem {
  Memory memory;
  DType dtype = DType::f32;
  int64_t batch = 0, heads_q = 0, heads_k = 0;
  int64_t len_q = 0,
          len_k = 0;  // lengths of a dense tensor; packed: the longest, or a bound if lengths are on a device
  int64_t dim_qk = 0, dim_v = 0;

  ConstRows q;  // [batch, heads_q, len_q, dim_qk]
  ConstRows k;  // [batch, heads_k, len_k, dim_qk]
  ConstRows v;  // [batch, heads_k, len_k, dim_v]

  double scale = 1, softcap = 0;
  int64_t window_left = kUnbounded, window_right = kUnbounded;  // causal: window_right is 0
  bool top_left = false;

  ConstHeadValues slopes;  // ALiBi
  ConstRows bias;          // [batch, heads_q, len_q, len_k], stride 0 where broadcast
  ConstRows mask;          // [batch, heads_q, len_q, len_k], stride 0 where broadcast
  // The extents of the mask, which may be longer than the longest sequence.
  int64_t mask_len_q = 0, mask_len_k = 0;
  MaskSummary summary{};  // summary of the mask; with it, the mask itself may be absent
  ConstHeadValues sink;
  Dropout dropout;

  const int32_t* cu_q = nullptr;  // packed: [batch + 1]
  const int32_t* cu_k = nullptr;
  const int32_t* used_q = nullptr;  // padded: [batch]
  const int32_t* used_k = nullptr;
  int64_t total_q = 0, total_k = 0;  // packed: rows of the whole tensors
  CachedKeys cache;                  // if set, len_k is the capacity of an entry or of a block-table row

  // If set, the rows of a head are those of several heads, one head after the other, with so many rows each.
  int64_t head_rows = 0;

  bool packed() const { return cu_q != nullptr; }
  bool has_mask() const { return mask || summary.blocks; }
  int64_t group() const { return heads_q / heads_k; }
};

struct ForwardProblem : Problem {
  Rows o;    // [batch, heads_q, len_q, dim_v]
  Rows lse;  // [batch, heads_q, len_q]
};

// Rotary embedding of queries and new keys by their positions.
struct Rotary {
  const void *cos = nullptr, *sin = nullptr;  // [positions][dim / 2]
  DType dtype = DType::f32;
  int64_t cos_stride = 0, sin_stride = 0, positions = 0;
  int64_t dim = 0;            // elements of a row that are rotated
  bool interleaved = false;   // pairs (2 i, 2 i + 1) instead of (i, i + dim / 2)
  bool one_position = false;  // every query gets the position of the first

  explicit operator bool() const { return cos != nullptr; }
};

// Attention over a KV cache. k and v are the cache, and new rows are written to it first.
struct CacheProblem : ForwardProblem {
  Rows k_cache, v_cache;   // k and v as outputs
  bool v_in_k = false;     // v is a slice of k's rows, so writing k writes v
  ConstRows k_new, v_new;  // [batch, heads_k, cache.len_new, dim], or packed; absent: nothing is appended
  Rotary rotary;
  int64_t num_splits = 0;  // 0: enough to fill the device
};

// Merges two partial results over different keys.
struct MergeProblem {
  Memory memory;
  int64_t batch = 0, heads = 0, len = 0, dim = 0;  // packed: batch is 1
  ConstRows o_a, lse_a, o_b, lse_b;
  Rows o, lse;
};

struct BackwardProblem : Problem {
  ConstRows o, lse, dout, dlse;
  Rows dq, dk, dv;
  Rows dbias;  // stride 0 where the gradient is summed
  // Extents of dbias: 1 where the gradient is summed. All packed lengths may be shorter than these.
  int64_t bias_batch = 0, bias_heads = 0, bias_len_q = 0, bias_len_k = 0;
  HeadValues dsink;
};

// One batch entry: its rows, its actual lengths, and how its queries align with its keys.
struct Sequence {
  int64_t q_begin, k_begin;  // first row; 0 unless packed, or a cache has left padding
  int64_t len_q, len_k;
  int64_t shift;  // query i is aligned with key i + shift
};
// Reads the lengths, so they must be in host memory.
Sequence sequence_of(const Problem& problem, int64_t b);

// Rows that the call appends to the cache of sequence b: [begin, begin + count) of k_new become rows [to, to + count).
struct AppendedRows {
  int64_t begin, count, to;
};
AppendedRows append_of(const CachedKeys& cache, int64_t b);  // reads lengths in host memory

// The entry or page, and the row within it, that holds row r of the cache of sequence b.
struct CacheRow {
  int64_t entry, row;
};
inline CacheRow cache_row(const CachedKeys& cache, int64_t b, int64_t r) {
  if (cache.page_size) return {*cache.pages(b, r / cache.page_size), r % cache.page_size};
  return {cache.entry ? cache.entry[b] : b, r};
}

// "f32 B=2 Hq=8 Hk=2 Sq=128 Sk=128 D=64 Dv=64 causal window=(16,0) dropout=0.1"
std::string to_string(const Problem& problem);

}  // namespace cuflash
