#include "problem/tensor_rules.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace cuflash {

static std::string shape_of(const Argument& a, const int64_t* values) {
  std::string text = "[";
  for (int d = 0; d < a.t.rank; ++d) text += join(d ? ", " : "", values[d]);
  return text + "]";
}

static void require_sizes(const Argument& a) {
  for (int d = 0; d < a.t.rank; ++d) {
    if (a.t.shape[d] < 0 || a.t.shape[d] > kMaxExtent)
      reject(a.name, ": dimension ", d, " of shape ", shape_of(a, a.t.shape), " must be between 0 and ", kMaxExtent);
    if (a.t.shape[d] > 1 && a.t.stride[d] < 0)
      reject(a.name, ": stride ", a.t.stride[d], " of dimension ", d,
             " is negative; pass a view with strides of 0 or more");
  }
  const int last = a.t.rank - 1;
  if (a.t.shape[last] > 1 && a.t.stride[last] != 1)
    reject(a.name, ": the last dimension must be contiguous, got stride ", a.t.stride[last], " for its extent ",
           a.t.shape[last], "; make a contiguous copy");
}

static bool has_elements(const Argument& a) {
  return std::all_of(a.t.shape, a.t.shape + a.t.rank, [](int64_t extent) { return extent > 0; });
}

// Offsets are 64-bit, so the last byte must be reachable with one.
static void require_addressable(const Argument& a) {
  int64_t strides = 0;
  for (int d = 0; d < a.t.rank; ++d) strides |= a.t.stride[d];
  if (strides >> 26 == 0) return;  // four dimensions of extents below 2^31, 8 bytes each
  int64_t last = 0, bytes = 0;
  bool overflows = false;
  for (int d = 0; d < a.t.rank; ++d) {
    int64_t offset = 0;
    overflows |= __builtin_mul_overflow(a.t.shape[d] - 1, a.step(d), &offset);
    overflows |= __builtin_add_overflow(last, offset, &last);
  }
  overflows |= __builtin_add_overflow(last, int64_t{1}, &last);
  overflows |= __builtin_mul_overflow(last, size_of(a.dtype()), &bytes);
  if (overflows)
    reject(a.name, ": shape ", shape_of(a, a.t.shape), " with strides ", shape_of(a, a.t.stride),
           " reaches beyond 2^63 bytes");
}

void require_tensor(const Argument& a, int rank, const char* shape) {
  if (!a.given()) reject(a.name, ": is missing; a tensor ", shape, " is needed");
  if (a.t.rank != rank)
    reject(a.name, ": has rank ", a.t.rank, ", must have rank ", rank, ": ", shape,
           rank == 4 && a.t.rank == 3 ? "; packed tensors need cu_seqlens_q and cu_seqlens_k" : "");
  if (!is_known(a.dtype())) reject(a.name, ": dtype ", a.t.dtype, " is not a cuflash_dtype");
  require_sizes(a);
  if (!has_elements(a)) return;
  require_addressable(a);
  if (!a.t.data) reject(a.name, ": data is NULL, but the tensor ", shape_of(a, a.t.shape), " has elements");
  if (reinterpret_cast<uintptr_t>(a.t.data) % static_cast<uintptr_t>(size_of(a.dtype())) != 0)
    reject(a.name, ": data ", a.t.data, " is not aligned to its element, ", size_of(a.dtype()), " bytes of ",
           name_of(a.dtype()));
}

// Sorted by stride, each dimension must step beyond everything that the smaller ones reach. This also rejects
// interleaved layouts that do not overlap, but outputs are not allocated that way.
static bool elements_overlap(const Argument& a) {
  int order[4] = {0, 1, 2, 3};
  for (int n = 1; n < a.t.rank; ++n)
    for (int m = n; m > 0 && a.t.stride[order[m]] < a.t.stride[order[m - 1]]; --m) std::swap(order[m], order[m - 1]);
  int64_t reach = 0;
  for (int n = 0; n < a.t.rank; ++n) {
    const int d = order[n];
    if (a.t.shape[d] <= 1) continue;
    if (a.t.stride[d] <= reach) return true;
    reach += (a.t.shape[d] - 1) * a.t.stride[d];
  }
  return false;
}

void require_output(const Argument& a, int rank, const char* shape) {
  require_tensor(a, rank, shape);
  if (has_elements(a) && elements_overlap(a))
    reject(a.name, ": elements of this output share memory: shape ", shape_of(a, a.t.shape), " with strides ",
           shape_of(a, a.t.stride), "; give every element its own address");
}

void reject_extent(const Argument& a, int d, int64_t extent, const char* meaning) {
  reject(a.name, ": dimension ", d, " of shape ", shape_of(a, a.t.shape), " is ", a.t.shape[d], ", must be ", extent,
         ", ", meaning);
}

void require_value_type(const Argument& a, DType q_type) {
  if (a.dtype() != q_type && a.dtype() != DType::f32)
    reject(a.name, ": type ", name_of(a.dtype()), " must be ", name_of(q_type), ", the type of q",
           q_type == DType::f32 ? "" : ", or f32");
}

void require_type(const Argument& a, DType type, const char* why) {
  if (a.dtype() != type) reject(a.name, ": type ", name_of(a.dtype()), " must be ", name_of(type), ", ", why);
}

}  // namespace cuflash
