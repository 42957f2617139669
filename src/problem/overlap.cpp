#include "problem/overlap.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cuflash {
namespace {

// A tensor as runs of contiguous bytes: one run at every sum of multiples of the strides.
struct Runs {
  int64_t first = 0;  // address of the first run
  int dims = 0;
  int64_t extent[4], stride[4];  // dimensions by ascending stride; strides in bytes
  int64_t reach[5];              // [n]: bytes spanned by a run and the n innermost dimensions

  explicit Runs(const Argument& a) : first(reinterpret_cast<intptr_t>(a.t.data)) {
    const int64_t size = size_of(a.dtype());
    for (int d = 0; d < a.t.rank; ++d)
      if (!a.repeats(d)) insert(a.extent(d), a.step(d) * size);
    join(size);
  }

 private:
  void insert(int64_t count, int64_t step) {
    int n = dims++;
    for (; n > 0 && stride[n - 1] > step; --n) extent[n] = extent[n - 1], stride[n] = stride[n - 1];
    extent[n] = count, stride[n] = step;
  }

  // Merges dimensions that continue the run, or the dimension before them.
  void join(int64_t run) {
    int kept = 0;
    for (int n = 0; n < dims; ++n) {
      if (kept == 0 && stride[n] <= run) {
        run += (extent[n] - 1) * stride[n];
      } else if (kept > 0 && stride[n] == stride[kept - 1] * extent[kept - 1]) {
        extent[kept - 1] *= extent[n];
      } else {
        extent[kept] = extent[n], stride[kept] = stride[n];
        ++kept;
      }
    }
    dims = kept;
    reach[0] = run;
    for (int n = 0; n < dims; ++n) reach[n + 1] = reach[n] + (extent[n] - 1) * stride[n];
  }
};

// The inner dimensions of a tensor at one index of the outer ones.
struct Part {
  const Runs* runs;
  int dims;
  int64_t at;  // address

  int64_t end() const { return at + runs->reach[dims]; }
  int64_t extent() const { return runs->extent[dims - 1]; }
  int64_t stride() const { return runs->stride[dims - 1]; }
  int64_t inner_reach() const { return runs->reach[dims - 1]; }
  Part inner(int64_t index) const { return {runs, dims - 1, at + index * stride()}; }
};

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// The integers n at which [at + n stride, at + n stride + bytes) overlaps the part.
struct Indices {
  int64_t first, last;
};
Indices overlapping_indices(const Part& part, int64_t at, int64_t stride, int64_t bytes) {
  return {floor_of(part.at - at - bytes, stride) + 1, floor_of(part.end() - 1 - at, stride)};
}

bool meet(const Part& a, const Part& b, int& steps) {
  if (a.end() <= b.at || b.end() <= a.at) return false;
  if (a.dims == 0 && b.dims == 0) return true;
  if (a.dims == 0 || (b.dims > 0 && b.stride() > a.stride())) return meet(b, a, steps);
  if (a.dims == 1 && b.dims == 1 && a.stride() == b.stride()) {
    // Only the difference between the two indices matters.
    const Indices n = overlapping_indices(b.inner(0), a.at, a.stride(), a.inner_reach());
    return std::max(n.first, 1 - b.extent()) <= std::min(n.last, a.extent() - 1);
  }
  const Indices n = overlapping_indices(b, a.at, a.stride(), a.inner_reach());
  const int64_t last = std::min(n.last, a.extent() - 1);
  for (int64_t index = std::max<int64_t>(n.first, 0); index <= last && steps > 0; ++index, --steps)
    if (meet(a.inner(index), b, steps)) return true;
  return false;
}

}  // namespace

Extent extent_of(const Argument& a) {
  if (!a.given()) return {};
  // Emptiness is checked first, because the strides of an empty tensor may be anything.
  for (int d = 0; d < a.t.rank; ++d)
    if (a.extent(d) == 0) return {};
  int64_t last = 0;
  for (int d = 0; d < a.t.rank; ++d) last += (a.extent(d) - 1) * a.step(d);
  const auto begin = reinterpret_cast<uintptr_t>(a.t.data);
  const uintptr_t bytes = static_cast<uintptr_t>(last + 1) * static_cast<uintptr_t>(size_of(a.dtype()));
  return {begin, begin + std::min(bytes, std::numeric_limits<uintptr_t>::max() - begin)};
}

bool share_memory(const Argument& a, const Argument& b) {
  const Extent of_a = extent_of(a), of_b = extent_of(b);
  constexpr uintptr_t kFarthest = std::numeric_limits<int64_t>::max();  // beyond the memory of any process
  if (!of_a.meets(of_b) || std::max(of_a.end, of_b.end) > kFarthest) return false;
  int steps = 300;
  const Runs runs_a(a), runs_b(b);
  return meet({&runs_a, runs_a.dims, runs_a.first}, {&runs_b, runs_b.dims, runs_b.first}, steps);
}

}  // namespace cuflash
