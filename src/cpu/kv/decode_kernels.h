// The hot loops of the decode path, one table of them per instruction set and type. K and V are read where they lie, in
// the order of memory, and each of their vectors meets all rows of queries that share it: scores are s [row][key].
#pragma once

#include <cstdint>

#include "dtype.h"

namespace cuflash::cpu {

// Rows of K or V of a block of keys, for one or several key/value heads, in the caller's memory.
struct KeyRows {
  const void* data;
  DType dtype;
  int64_t offset, head_stride, row_stride;  // of the first element, in elements
  int64_t heads, keys, dim;
  int64_t prefetch_distance = 0;  // elements from a row to one that will be read soon; 0: what follows them in memory
};

// The rows of queries of one head, and those of the next: x [head][row][stride].
template <class T>
struct RowBlock {
  T* data;
  int64_t rows, stride;
};

template <class T>
struct DecodeKernels {
  // to [row] = one row of dim elements from element `begin` on, 0 up to a whole vector.
  void (*widen)(const void* data, DType dtype, int64_t begin, int64_t dim, T* to);

  // q in the form that dots wants, in place; null where rows are that form.
  void (*pack)(RowBlock<T> q, int64_t heads, int64_t dim);

  // s = scale q . k
  void (*dots)(const KeyRows& k, RowBlock<const T> q, T scale, RowBlock<T> s);

  // o += p v in the order of the keys: cut into calls at multiples of 16, they change no bit of it.
  void (*add)(const KeyRows& v, RowBlock<const T> p, RowBlock<T> o);

  // One row: s becomes exp(s - max), and 0 up to a whole vector; m and l go on; o shrinks with the maximum's growth.
  void (*softmax)(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim);

  // One row: p as add takes it, in place; its sums before and after are added to sums [2]. Null where p is not rounded.
  void (*round)(int64_t keys, T* p, T* sums);

  // One row: s = cap * tanh(s / cap), up to a whole vector.
  void (*softcap)(int64_t keys, T* s, T cap);

  bool (*is_finite)(const T* row, int64_t dim);
};

// These entries for bf16, by matrix instructions: heads of up to kMatrixDim elements, p rounded to bf16.
inline constexpr int64_t kMatrixDim = 576;  // of latent attention (MLA)
struct MatrixProducts {
  void (*pack)(RowBlock<float> q, int64_t heads, int64_t dim);
  void (*dots)(const KeyRows& k, RowBlock<const float> q, float scale, RowBlock<float> s);
  void (*add)(const KeyRows& v, RowBlock<const float> p, RowBlock<float> o);
  void (*round)(int64_t keys, float* p, float* sums);
};

struct DecodeTables {
  DecodeKernels<float> f32;
  DecodeKernels<double> f64;
  const MatrixProducts* bf16 = nullptr;  // where the instruction set has them
};
const DecodeTables& decode_tables();  // of the instruction set in use (kernels.h)

}  // namespace cuflash::cpu
