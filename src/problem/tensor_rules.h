// Rules that hold for every tensor argument. Each throws FlashAttentionError with a sentence that starts with the
// argument's name.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"

namespace cuflash {

// A view of a tensor of the public structs. It points into the struct because every call makes a dozen of them.
struct TensorView {
  const void* data;
  int dtype, rank;
  const int64_t *shape, *stride;

  TensorView() = default;
  TensorView(const cuflash_tensor& t) : data(t.data), dtype(t.dtype), rank(t.rank), shape(t.shape), stride(t.stride) {}
  TensorView(const cuflash_mutable_tensor& t)
      : data(t.data), dtype(t.dtype), rank(t.rank), shape(t.shape), stride(t.stride) {}
  TensorView(const cuflash_tensor&&) = delete;
  TensorView(const cuflash_mutable_tensor&&) = delete;
};

// A tensor argument and the name it has in the public structs.
struct Argument {
  const char* name;
  TensorView t;

  Argument() = default;
  Argument(const char* name, const TensorView& t) : name(name), t(t) {}

  bool given() const { return t.rank != 0 || t.data != nullptr; }
  DType dtype() const { return static_cast<DType>(t.dtype); }
  int64_t extent(int d) const { return t.shape[d]; }
  // The stride to use: 0 along a dimension of extent 1, whatever the caller put there.
  int64_t step(int d) const { return t.shape[d] == 1 ? 0 : t.stride[d]; }
  bool repeats(int d) const { return step(d) == 0; }
};

inline constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 1;

// Requires a tensor that is present, has this rank and a known type, extents and strides in range, a contiguous last
// dimension, and data aligned to its element.
void require_tensor(const Argument& a, int rank, const char* shape);

// require_tensor, and requires that no two elements share memory.
void require_output(const Argument& a, int rank, const char* shape);

// Requires that dimension d has exactly this extent; `meaning` says what it must match.
[[noreturn]] void reject_extent(const Argument& a, int d, int64_t extent, const char* meaning);
inline void require_extent(const Argument& a, int d, int64_t extent, const char* meaning) {
  if (a.t.shape[d] != extent) reject_extent(a, d, extent, meaning);
}

// Requires the type of q, or f32.
void require_value_type(const Argument& a, DType q_type);
void require_type(const Argument& a, DType type, const char* why);

}  // namespace cuflash
