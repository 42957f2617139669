#include "cpu/kv/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checked.h"
#include "cpu/threads/threads.h"
#include "dtype.h"

namespace cuflash::cpu {
namespace {

// exp(lse - top); two equal infinities have weight 1.
template <class T>
T weight_of(T lse, T top) {
  return lse == top ? T{1} : std::exp(lse - top);
}

template <class T>
void merge_row(const MergeProblem& p, int64_t b, int64_t h, int64_t row) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  T lse_a, lse_b;
  load_row(p.lse_a.data, p.lse_a.dtype, p.lse_a.at(b, h, row), 1, &lse_a);
  load_row(p.lse_b.data, p.lse_b.dtype, p.lse_b.at(b, h, row), 1, &lse_b);
  const bool has_a = lse_a != kNone, has_b = lse_b != kNone;
  const T top = std::max(lse_a, lse_b);
  const T part_a = has_a ? weight_of(lse_a, top) : T{0}, part_b = has_b ? weight_of(lse_b, top) : T{0};
  const T share = has_a || has_b ? 1 / (part_a + part_b) : T{0};

  constexpr int64_t kBlock = 64;
  T of_a[kBlock], of_b[kBlock];
  for (int64_t d = 0; d < p.dim; d += kBlock) {
    const int64_t count = std::min(kBlock, p.dim - d);
    // Do not read the output of a part without keys: 0 times NaN would be NaN.
    std::fill_n(of_a, count, T{0});
    std::fill_n(of_b, count, T{0});
    if (has_a) load_row(p.o_a.data, p.o_a.dtype, p.o_a.at(b, h, row) + d, count, of_a);
    if (has_b) load_row(p.o_b.data, p.o_b.dtype, p.o_b.at(b, h, row) + d, count, of_b);
    for (int64_t n = 0; n < count; ++n) of_a[n] = (of_a[n] * part_a + of_b[n] * part_b) * share;
    store_row(p.o.data, p.o.dtype, p.o.at(b, h, row) + d, count, of_a);
  }
  if (!p.lse) return;
  const T lse = has_a || has_b ? top + std::log(part_a + part_b) : kNone;
  store_row(p.lse.data, p.lse.dtype, p.lse.at(b, h, row), 1, &lse);
}

}  // namespace

void merge(const MergeProblem& p, const Execution& e) {
  const int64_t rows = (Checked(p.batch) * p.heads * p.len).value("o_a: the number of rows is");
  constexpr int64_t kRowsOfATask = 64;  // tens of microseconds
  const int64_t tasks = rows / kRowsOfATask + (rows % kRowsOfATask != 0);
  run_tasks(e, std::min<int64_t>(num_threads(e), tasks), tasks, [&](int64_t, int64_t task) {
    for (int64_t n = task * kRowsOfATask; n < std::min(rows, (task + 1) * kRowsOfATask); ++n) {
      const int64_t row = n % p.len, h = n / p.len % p.heads, b = n / p.len / p.heads;
      p.lse_a.dtype == DType::f64 ? merge_row<double>(p, b, h, row) : merge_row<float>(p, b, h, row);
    }
  });
}

}  // namespace cuflash::cpu
