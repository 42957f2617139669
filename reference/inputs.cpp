#include "inputs.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "dtype.h"

namespace cuflash::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t int_at(const ConstTensor& t, int64_t index) {
  return static_cast<int64_t>(load_element(t.data, t.dtype, index));
}

// The element of a [B or 1, Hq or 1, Sq or 1, Sk] tensor for one score.
int64_t score_index(const ConstTensor& t, const Head& head, int64_t i, int64_t j) {
  const int64_t b = t.shape[0] == 1 ? 0 : head.b * t.stride[0];
  const int64_t h = t.shape[1] == 1 ? 0 : head.h * t.stride[1];
  const int64_t row = t.shape[2] == 1 ? 0 : i * t.stride[2];
  return b + h + row + j;
}

std::array<int64_t, 4> dbias_shape(const ConstTensor& bias) {
  std::array<int64_t, 4> shape = bias.shape;
  for (size_t d = 0; d < 3; ++d) {
    if (bias.stride[d] == 0) shape[d] = 1;
  }
  return shape;
}

}  // namespace

Inputs::Inputs(const Attention& a)
    : attention(a),
      packed(static_cast<bool>(a.cu_seqlens_q)),
      batch(packed ? a.cu_seqlens_q.shape[0] - 1 : a.q.shape[0]),
      heads_q(a.q.shape[1]),
      heads_k(a.k.shape[1]),
      rows_q(packed ? a.q.shape[0] : a.q.shape[2]),
      rows_k(packed ? a.k.shape[0] : a.k.shape[2]),
      dim(a.q.shape[packed ? 2 : 3]),
      dim_v(a.v.shape[packed ? 2 : 3]),
      scale(a.scale.value_or(1 / std::sqrt(static_cast<double>(dim)))),
      window_left(a.window_left),
      window_right(a.causal ? 0 : a.window_right),
      keep_scale(1 / (1 - a.dropout_p)),
      rule(dropout_rule(a.dropout_p)) {
  for (int64_t b = 0; b < batch; ++b) {
    Head head{};
    head.b = b;
    head.first_q = packed ? int_at(a.cu_seqlens_q, b) : 0;
    head.first_k = packed ? int_at(a.cu_seqlens_k, b) : 0;
    head.len_q = packed ? int_at(a.cu_seqlens_q, b + 1) - head.first_q : a.seqlens_q ? int_at(a.seqlens_q, b) : rows_q;
    head.len_k = packed ? int_at(a.cu_seqlens_k, b + 1) - head.first_k : a.seqlens_k ? int_at(a.seqlens_k, b) : rows_k;
    head.c = a.alignment == Alignment::bottom_right ? head.len_k - head.len_q : 0;
    for (int64_t h = 0; h < heads_q; ++h) {
      head.h = h;
      head.h_kv = h / (heads_q / heads_k);
      const ConstTensor& slopes = a.alibi_slopes;
      head.slope =
          slopes ? load_element(slopes.data, slopes.dtype, slopes.rank == 2 ? b * slopes.stride[0] + h : h) : 0;
      head.sink = a.sink ? load_element(a.sink.data, a.sink.dtype, h) : -kInfinity;
      head.dropout =
          dropout_stream(a.dropout_seed, a.dropout_offset, static_cast<unsigned>(b), static_cast<unsigned>(h));
      heads.push_back(head);
    }
  }
}

RowNumbers Inputs::q_rows(const Head& head) const {
  if (packed) return {head.first_q * heads_q + head.h, heads_q};
  return {(head.b * heads_q + head.h) * rows_q, 1};
}
RowNumbers Inputs::k_rows(const Head& head) const {
  if (packed) return {head.first_k * heads_k + head.h_kv, heads_k};
  return {(head.b * heads_k + head.h_kv) * rows_k, 1};
}
RowNumbers Inputs::lse_rows(const Head& head) const {
  if (packed) return {head.h * rows_q + head.first_q, 1};
  return q_rows(head);
}

template <class Real>
std::vector<Real> Inputs::load(const ConstTensor& t, const Head& head, int64_t h, int64_t first, int64_t length) const {
  const int64_t width = t.shape[packed ? 2 : 3];
  const int64_t begin = packed ? first * t.stride[0] : head.b * t.stride[0];
  const int64_t row_stride = packed ? t.stride[0] : t.stride[2];
  std::vector<Real> rows(static_cast<size_t>(length * width));
  for (int64_t i = 0; i < length; ++i) {
    load_row(t.data, t.dtype, begin + h * t.stride[1] + i * row_stride, width, rows.data() + i * width);
  }
  return rows;
}
template std::vector<float> Inputs::load(const ConstTensor&, const Head&, int64_t, int64_t, int64_t) const;
template std::vector<double> Inputs::load(const ConstTensor&, const Head&, int64_t, int64_t, int64_t) const;

template <class Real>
std::vector<Real> Inputs::load_dlse(const ConstTensor& dlse, const Head& head) const {
  std::vector<Real> row(static_cast<size_t>(head.len_q));
  if (!dlse) return row;
  const int64_t begin =
      packed ? head.h * dlse.stride[0] + head.first_q : head.b * dlse.stride[0] + head.h * dlse.stride[1];
  load_row(dlse.data, dlse.dtype, begin, head.len_q, row.data());
  return row;
}
template std::vector<float> Inputs::load_dlse(const ConstTensor&, const Head&) const;
template std::vector<double> Inputs::load_dlse(const ConstTensor&, const Head&) const;

void Inputs::visible_keys(const Head& head, int64_t i, std::vector<uint8_t>& visible) const {
  visible.assign(static_cast<size_t>(head.len_k), 1);
  if (!hides_keys()) return;
  const ConstTensor& mask = attention.mask;
  const uint8_t* allowed = mask ? static_cast<const uint8_t*>(mask.data) + score_index(mask, head, i, 0) : nullptr;
  for (int64_t j = 0; j < head.len_k; ++j) {
    // The spec's inequalities, arranged so that no window overflows.
    const int64_t position = i + head.c;
    const bool left = window_left < 0 || position - j <= window_left;
    const bool right = window_right < 0 || j - position <= window_right;
    visible[static_cast<size_t>(j)] = left && right && (allowed == nullptr || allowed[j] != 0);
  }
}

bool Inputs::hides_keys() const { return window_left >= 0 || window_right >= 0 || attention.mask; }

double Inputs::alibi(const Head& head, int64_t i, int64_t j) const {
  return attention.alibi_slopes ? head.slope * static_cast<double>(std::abs(i + head.c - j)) : 0;
}

double Inputs::bias(const Head& head, int64_t i, int64_t j) const {
  const ConstTensor& t = attention.bias;
  return t ? load_element(t.data, t.dtype, score_index(t, head, i, j)) : 0;
}

double Inputs::keep(const Head& head, int64_t i, int64_t j) const {
  if (attention.dropout_p == 0) return 1;
  return dropout_keeps(head.dropout, static_cast<unsigned>(i), static_cast<unsigned>(j), rule) ? keep_scale : 0;
}

int64_t Inputs::dbias_index(const Head& head, int64_t i, int64_t j) const {
  const auto shape = dbias_shape(attention.bias);
  const int64_t b = shape[0] == 1 ? 0 : head.b;
  const int64_t h = shape[1] == 1 ? 0 : head.h;
  const int64_t row = shape[2] == 1 ? 0 : i;
  return ((b * shape[1] + h) * shape[2] + row) * shape[3] + j;
}

Forward Inputs::empty_forward() const {
  const int64_t rows = (packed ? 1 : batch) * heads_q * rows_q;
  Forward result;
  result.o.assign(static_cast<size_t>(rows * dim_v), 0);
  result.lse.assign(static_cast<size_t>(rows), packed ? 0 : -kInfinity);
  return result;
}

Backward Inputs::empty_backward() const {
  const int64_t q_count = (packed ? 1 : batch) * heads_q * rows_q;
  const int64_t k_count = (packed ? 1 : batch) * heads_k * rows_k;
  Backward result;
  result.dq.assign(static_cast<size_t>(q_count * dim), 0);
  result.dk.assign(static_cast<size_t>(k_count * dim), 0);
  result.dv.assign(static_cast<size_t>(k_count * dim_v), 0);
  if (attention.bias) {
    const auto shape = dbias_shape(attention.bias);
    result.dbias.assign(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]), 0);
  }
  if (attention.sink) result.dsink.assign(static_cast<size_t>(heads_q), 0);
  return result;
}

}  // namespace cuflash::reference
