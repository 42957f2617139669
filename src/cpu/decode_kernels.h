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

  // s = scale q . k
  void (*dots)(const KeyRows& k, RowBlock<const T> q, T scale, RowBlock<T> s);

  // o += p v, key by key: how the keys are cut into calls does not change a bit of it.
  void (*add)(const KeyRows& v, RowBlock<const T> p, RowBlock<T> o);

  // One row: s becomes exp(s - max), and 0 up to a whole vector; m and l go on; o shrinks with the maximum's growth.
  void (*softmax)(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim);

  // One row: s = cap * tanh(s / cap), up to a whole vector.
  void (*softcap)(int64_t keys, T* s, T cap);

  bool (*is_finite)(const T* row, int64_t dim);
};

struct DecodeTables {
  DecodeKernels<float> f32;
  DecodeKernels<double> f64;
};

// Of the instruction set in use (kernels.h).
template <class T>
const DecodeKernels<T>& decode_kernels();
template <>
const DecodeKernels<float>& decode_kernels();
template <>
const DecodeKernels<double>& decode_kernels();

}  // namespace cuflash::cpu
