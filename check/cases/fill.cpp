#include "check/cases/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cuflash::check {
namespace {

// Changes each element in memory once, although a repeated dimension visits it again.
template <class Change>
void change(GuardedTensor& t, Change&& changed) {
  std::vector<bool> done(static_cast<size_t>(t.span()));
  t.for_each([&](const Index&, int64_t offset) {
    if (done[static_cast<size_t>(offset)]) return;
    done[static_cast<size_t>(offset)] = true;
    t.set(offset, changed(t.get(offset)));
  });
}

// Each row holds one value. one_for_all: all rows hold the same value, so that every key has the same score.
void make_rows_constant(GuardedTensor& t, bool one_for_all) {
  const auto dim = static_cast<size_t>(t.view().rank - 1);
  double value = 0;
  bool first = true;
  t.for_each([&](const Index& index, int64_t offset) {
    if (first || (index[dim] == 0 && !one_for_all)) value = t.get(offset);
    first = false;
    t.set(offset, value);
  });
}

// One of the last keys of every sequence, or of the first ones, which GPU kernels visit last, is parallel to one of its
// queries, with a score of about 60, so that everything summed before it must be rescaled to nearly nothing.
void plant_late_peaks(const Case& c, const GuardedTensor& q, GuardedTensor& k, Random& random) {
  const std::vector<int32_t> first_q = cumulative(c.lengths_q), first_k = cumulative(c.lengths_k);
  for (int64_t b = 0; b < c.batch; ++b) {
    if (c.length_q(b) == 0 || c.length_k(b) == 0) continue;
    const bool packed = c.mode == Mode::packed;
    const int64_t i = static_cast<int64_t>(random.below(static_cast<uint64_t>(c.length_q(b))));
    const int64_t from_end = static_cast<int64_t>(random.below(static_cast<uint64_t>(c.length_k(b) / 8 + 1)));
    const int64_t j = random.below(2) == 0 ? from_end : c.length_k(b) - 1 - from_end;
    const int64_t head_k = static_cast<int64_t>(random.below(static_cast<uint64_t>(c.heads_k)));
    const int64_t head_q = head_k * (c.heads_q / c.heads_k);
    const int64_t from = row_offset(q.view(), b, head_q, i + (packed ? first_q[static_cast<size_t>(b)] : 0));
    const int64_t to = row_offset(k.view(), b, head_k, j + (packed ? first_k[static_cast<size_t>(b)] : 0));
    double norm = 0;
    for (int64_t d = 0; d < c.dim; ++d) norm += q.get(from + d) * q.get(from + d);
    const double wanted = 60 / (c.scale_value() * norm);
    const double factor = std::isfinite(wanted) ? std::clamp(wanted, -1000.0, 1000.0) : 1;
    for (int64_t d = 0; d < c.dim; ++d) k.set(to + d, factor * q.get(from + d));
  }
}

// Scores of N(0, 3300): the largest are around 1e4.
void make_logits_large(const Case& c, GuardedTensor& q, GuardedTensor& k) {
  const double spread = std::abs(c.scale_value()) * std::sqrt(static_cast<double>(c.dim));
  const double factor = spread > 0 ? std::min(std::sqrt(3300 / spread), 1000.0) : 50;
  for (GuardedTensor* t : {&q, &k}) change(*t, [&](double x) { return x * factor; });
}

}  // namespace

void fill_normal(GuardedTensor& t, Random& random, double sigma) {
  if (t.span() == 0) return;
  std::vector<double> row(static_cast<size_t>(t.row_length()));
  for_each_row(t.view(), [&](const Index&, int64_t offset) {
    random.normals(row.data(), t.row_length(), sigma);
    t.set_row(offset, t.row_length(), row.data());
  });
}

void fill_qkv(const Case& c, GuardedTensor& q, GuardedTensor& k, GuardedTensor& v, Random& random) {
  for (GuardedTensor* t : {&q, &k, &v}) fill_normal(*t, random);
  switch (c.flavour) {
    case Flavour::normal: break;
    case Flavour::outliers:
      for (GuardedTensor* t : {&q, &k, &v}) change(*t, [&](double x) { return random.below(50) == 0 ? 20 * x : x; });
      break;
    case Flavour::common_offset:
      for (GuardedTensor* t : {&k, &v}) change(*t, [](double x) { return x + 30; });
      break;
    case Flavour::constant_rows:
      make_rows_constant(q, false);
      make_rows_constant(k, random.below(2) == 0);
      make_rows_constant(v, false);
      break;
    case Flavour::late_peak: plant_late_peaks(c, q, k, random); break;
    case Flavour::tiny:  // partly denormal in f16
      for (GuardedTensor* t : {&q, &k, &v}) change(*t, [](double x) { return x * 0x1p-13; });
      break;
    case Flavour::large_logits: make_logits_large(c, q, k); break;
  }
}

void fill_mask(const Case& c, GuardedTensor& mask, Random& random) {
  const int64_t block = int64_t{16} << random.below(4), length = 1 + static_cast<int64_t>(random.below(200));
  const uint64_t blocks_seed = random.next();
  const auto block_shown = [&](const Index& at) {
    const auto number = static_cast<uint64_t>(((at[0] * 64 + at[1]) * 4096 + at[2] / block) * 4096 + at[3] / block);
    return Random(blocks_seed + number).below(8) < c.mask_eighths;
  };
  mask.for_each([&](const Index& at, int64_t offset) {
    bool shown = random.below(8) < c.mask_eighths;
    if (c.mask_pattern == MaskPattern::blocks) shown = block_shown(at);
    if (c.mask_pattern == MaskPattern::documents) shown = at[2] / length == at[3] / length;
    mask.set(offset, shown ? static_cast<double>(1 + random.below(2) * random.below(255)) : 0);
  });
}

void fill_garbage(GuardedTensor& t, const std::vector<bool>& seen, Random& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double garbage[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity, 1e30};
  t.for_each([&](const Index&, int64_t offset) {
    if (!seen[static_cast<size_t>(offset)]) t.set(offset, garbage[random.below(4)]);
  });
}

}  // namespace cuflash::check
