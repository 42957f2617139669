// The hot loops of the decode path, one table per instruction set and type. They read K and V in place and in memory
// order, and multiply each vector with all query rows that share it. Scores are s [row][key].
#pragma once

#include <cstdint>

#include "dtype.h"

namespace cuflash::cpu {

// Rows of K or V of a block of keys, for one or several KV heads, in the caller's memory.
struct KeyRows {
  const void* data;
  DType dtype;
  int64_t offset, head_stride, row_stride;  // offset of the first element; all in elements
  int64_t heads, keys, dim;
  int64_t prefetch_distance = 0;  // elements from a row to the one to prefetch; 0: rows that follow in memory
};

// The rows of one head, followed by those of the next: x [head][row][stride].
template <class T>
struct RowBlock {
  T* data;
  int64_t rows, stride;
};

template <class T>
struct DecodeKernels {
  // Widens one row of dim elements, starting at element `begin`; zero-padded to a whole vector.
  void (*widen)(const void* data, DType dtype, int64_t begin, int64_t dim, T* to);

  // Converts q in place to the layout of dots; null if plain rows are that layout.
  void (*pack)(RowBlock<T> q, int64_t heads, int64_t dim);

  // s = scale q . k
  void (*dots)(const KeyRows& k, RowBlock<const T> q, T scale, RowBlock<T> s);

  // o += p v, in the order of the keys. Splitting the keys into several calls at multiples of 16 does not change the
  // bits.
  void (*add)(const KeyRows& v, RowBlock<const T> p, RowBlock<T> o);

  // One row: s becomes exp(s - max), zero-padded to a whole vector; the running max m and sum l are updated, and o is
  // rescaled if the max grew.
  void (*softmax)(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim);

  // One row: rounds p in place for add, and adds its sums before and after rounding to sums [2]. Null if p is not
  // rounded.
  void (*round)(int64_t keys, T* p, T* sums);

  // One row: s = cap * tanh(s / cap), up to a whole vector.
  void (*softcap)(int64_t keys, T* s, T cap);

  bool (*is_finite)(const T* row, int64_t dim);
};

// The entries that matrix instructions provide for bf16: heads of up to kMatrixDim elements, p rounded to bf16.
inline constexpr int64_t kMatrixDim = 576;  // the head size of multi-head latent attention (MLA)
struct MatrixProducts {
  void (*pack)(RowBlock<float> q, int64_t heads, int64_t dim);
  void (*dots)(const KeyRows& k, RowBlock<const float> q, float scale, RowBlock<float> s);
  void (*add)(const KeyRows& v, RowBlock<const float> p, RowBlock<float> o);
  void (*round)(int64_t keys, float* p, float* sums);
};

struct DecodeTables {
  DecodeKernels<float> f32;
  DecodeKernels<double> f64;
  const MatrixProducts* bf16 = nullptr;  // null if the instruction set has none
};
const DecodeTables& decode_tables();  // tables of the instruction set in use (kernels.h)

}  // namespace cuflash::cpu
