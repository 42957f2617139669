// Marks the elements of the inputs that a call may read, and fills the others with garbage.
#include <limits>

#include "check/cases/fill.h"
#include "check/cases/memory.h"

namespace cuflash::check {

static size_t at(int64_t offset) { return static_cast<size_t>(offset); }

static int64_t score_offset(const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t j) {
  const auto along = [&](size_t d, int64_t n) { return t.shape[d] == 1 ? 0 : n * t.stride[d]; };
  return along(0, b) + along(1, h) + along(2, i) + j;
}

bool CaseMemory::shows(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return !mask || mask.get(score_offset(mask.view(), b, h, i, j)) != 0;
}

bool CaseMemory::visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return case_.sees(b, i, j) && shows(b, h, i, j);
}

bool CaseMemory::key_is_seen(int64_t b, int64_t head_k, int64_t j) const {
  const int64_t group = case_.heads_q / case_.heads_k;
  for (int64_t h = head_k * group; h < (head_k + 1) * group; ++h)
    for (int64_t i = 0; i < case_.length_q(b); ++i)
      if (visible(b, h, i, j)) return true;
  return false;
}

CaseMemory::Marks CaseMemory::used_query_rows(const GuardedTensor& t, int64_t heads, int64_t dim) const {
  Marks marks(at(t.span()));
  for (int64_t b = 0; b < case_.batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < case_.length_q(b); ++i)
        for (int64_t d = 0; d < dim; ++d) marks[at(row_offset(t.view(), b, h, first_q(b) + i) + d)] = true;
  return marks;
}

int64_t CaseMemory::lse_offset(const GuardedTensor& t, int64_t b, int64_t h, int64_t i) const {
  const auto& stride = t.view().stride;
  return t.view().rank == 3 ? b * stride[0] + h * stride[1] + i : h * stride[0] + first_q(b) + i;
}

CaseMemory::Marks CaseMemory::used_lse(const GuardedTensor& t) const {
  Marks marks(at(t.span()));
  for (int64_t b = 0; b < case_.batch; ++b)
    for (int64_t h = 0; h < case_.heads_q; ++h)
      for (int64_t i = 0; i < case_.length_q(b); ++i) marks[at(lse_offset(t, b, h, i))] = true;
  return marks;
}

CaseMemory::Marks CaseMemory::seen_keys(const GuardedTensor& t, int64_t dim) const {
  Marks marks(at(t.span()));
  for (int64_t b = 0; b < case_.batch; ++b)
    for (int64_t h = 0; h < case_.heads_k; ++h)
      for (int64_t j = 0; j < case_.length_k(b); ++j)
        if (key_is_seen(b, h, j))
          for (int64_t d = 0; d < dim; ++d) marks[at(row_offset(t.view(), b, h, first_k(b) + j) + d)] = true;
  return marks;
}

CaseMemory::Marks CaseMemory::seen_bias() const {
  Marks marks(at(bias.span()));
  for (int64_t b = 0; b < case_.batch; ++b)
    for (int64_t h = 0; h < case_.heads_q; ++h)
      for (int64_t i = 0; i < case_.length_q(b); ++i)
        for (int64_t j = 0; j < case_.length_k(b); ++j)
          if (visible(b, h, i, j)) marks[at(score_offset(bias.view(), b, h, i, j))] = true;
  return marks;
}

void CaseMemory::change_hidden(uint64_t seed) {
  Random random(seed);
  fill_garbage(q, used_query_rows(q, case_.heads_q, case_.dim), random);
  fill_garbage(dout, used_query_rows(dout, case_.heads_q, case_.dim_v), random);
  fill_garbage(k, seen_keys(k, case_.dim), random);
  fill_garbage(v, seen_keys(v, case_.dim_v), random);
  if (dlse) fill_garbage(dlse, used_lse(dlse), random);
  if (bias) fill_garbage(bias, seen_bias(), random);
  freeze_inputs();
}

// Puts a NaN into a key that only some queries see, if there is one.
void CaseMemory::plant_live_nan(Random& random) {
  for (int64_t b = 0; b < case_.batch; ++b) {
    const int64_t length = case_.length_k(b);
    if (length == 0) continue;
    const auto head = static_cast<int64_t>(random.below(static_cast<uint64_t>(case_.heads_k)));
    const auto j = static_cast<int64_t>(random.below(static_cast<uint64_t>(length)));
    const auto d = static_cast<int64_t>(random.below(static_cast<uint64_t>(case_.dim)));
    k.set(row_offset(k.view(), b, head, first_k(b) + j) + d, std::numeric_limits<double>::quiet_NaN());
    return;
  }
}

}  // namespace cuflash::check
