// What plans of forward and backward have in common.
#pragma once

#include "cuda/plan.h"

namespace cuflash::cuda {

// The head size that kernels are compiled for. Few of them, so that few kernels serve all sizes.
int padded_dim(int64_t dim);

inline Element element_of(DType type) { return static_cast<Element>(type); }

// Throws CUFLASH_UNSUPPORTED, in a sentence, for what no kernel of this backend computes.
void require_supported(const Problem& problem);

// Whether scores are multiplied before anything else: a factor that is not a positive normal float cannot stand in the
// exponent beside masked scores of -inf.
inline bool must_scale_first(const Problem& problem) { return problem.scale < 1e-30; }

// The options of a kernel: none, exactly one, or all of them; all for rows that are copied element by element, which need
// not be fast, but need no kernels of their own for every option.
int kernel_options(const Problem& problem, CopyMode copy);

// Whether every row starts on a 16-byte boundary.
template <class Pointer>
bool has_vector_rows(const BasicRows<Pointer>& rows) {
  const int64_t per_vector = 16 / size_of(element_of(rows.dtype));
  const auto address = reinterpret_cast<uintptr_t>(rows.data);
  return address % 16 == 0 && (rows.batch_stride | rows.head_stride | rows.row_stride) % per_vector == 0;
}

// How rows reach shared memory; `vectors`: all of them can be copied in vectors.
inline CopyMode copy_mode(const Problem& p, bool vectors) {
  if (!vectors) return kCopyElements;
  // Of larger rows of 16 bits so many copies are issued at once that asking how long each is does no harm: measured.
  const int64_t largest = p.dtype == DType::f32 ? 256 : 128;
  const auto whole = [=](int64_t dim) { return dim == padded_dim(dim) && dim <= largest; };
  return whole(p.dim_qk) && whole(p.dim_v) ? kCopyWhole : kCopyVectors;
}

}  // namespace cuflash::cuda
