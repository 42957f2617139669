#include "tests/cuda/fake_gpu/emulate.h"

#include <cuflash/flash_attention.h>

#include "cpu/tile/summarize_mask.h"
#include "problem/problem.h"

namespace cuflash::test {
namespace {

class Views {
 public:
  explicit Views(const AttentionParams& a) : a_(a), packed_(a.cu_q != nullptr) {}

  Tensor rows(const RowsView& r, int64_t total, int64_t heads, int64_t length, int64_t dim) const {
    const auto dtype = static_cast<DType>(r.element);
    if (packed_) return {r.data, dtype, 3, {total, heads, dim}, {r.row_stride, r.head_stride, 1}};
    return {r.data, dtype, 4, {a_.batch, heads, length, dim}, {r.batch_stride, r.head_stride, r.row_stride, 1}};
  }
  Tensor lse(const RowsView& r) const {
    const auto dtype = static_cast<DType>(r.element);
    if (!r.data) return {};
    if (packed_) return {r.data, dtype, 2, {a_.heads_q, a_.total_q}, {r.head_stride, 1}};
    return {r.data, dtype, 3, {a_.batch, a_.heads_q, a_.len_q}, {r.batch_stride, r.head_stride, 1}};
  }
  // Extent 1 for a repeated dimension: it may be empty and still have one row of bias.
  Tensor scores(const RowsView& r, DType dtype) const {
    if (!r.data) return {};
    const auto extent = [](int64 stride, int64_t full) { return stride == 0 ? 1 : full; };
    return {
        r.data,
        dtype,
        4,
        {extent(r.batch_stride, a_.batch), extent(r.head_stride, a_.heads_q), extent(r.row_stride, a_.len_q), a_.len_k},
        {r.batch_stride, r.head_stride, r.row_stride, 1}};
  }
  Tensor head_values(const HeadView& v) const {
    const auto dtype = static_cast<DType>(v.element);
    if (!v.data) return {};
    if (v.batch_stride == 0) return {v.data, dtype, 1, {a_.heads_q}, {1}};
    return {v.data, dtype, 2, {a_.batch, a_.heads_q}, {v.batch_stride, 1}};
  }
  ConstTensor lengths(const int* data, int64_t count) const {
    return data ? ConstTensor(contiguous(data, count)) : ConstTensor{};
  }

 private:
  const AttentionParams& a_;
  bool packed_;
};

int64_t window(int64 side) { return side >= kUnbounded ? -1 : side; }

SummarizedMask summary_of(const AttentionParams& a) {
  const MaskShape shape{a.summary.batch_step ? a.batch : 1, a.summary.head_step ? a.heads_q : 1, a.summary.rows,
                        a.len_k};
  const auto words = static_cast<int64_t>(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
  return {contiguous(reinterpret_cast<const int32_t*>(a.summary.blocks), words),
          {shape.batch, shape.heads, shape.rows, shape.keys}};
}

Attention attention_of(const AttentionParams& a, const Views& views) {
  Attention attention{.q = views.rows(a.q, a.total_q, a.heads_q, a.len_q, a.dim_qk),
                      .k = views.rows(a.k, a.total_k, a.heads_k, a.len_k, a.dim_qk),
                      .v = views.rows(a.v, a.total_k, a.heads_k, a.len_k, a.dim_v)};
  attention.scale = a.scale, attention.softcap = a.softcap;
  attention.alignment = a.top_left ? Alignment::top_left : Alignment::bottom_right;
  attention.window_left = window(a.window_left), attention.window_right = window(a.window_right);
  attention.alibi_slopes = views.head_values(a.slopes), attention.sink = views.head_values(a.sink);
  attention.bias = views.scores(a.bias, static_cast<DType>(a.bias.element));
  attention.mask = views.scores(a.mask, DType::boolean);
  if (a.summary.blocks) attention.mask = {}, attention.mask_summary = summary_of(a);
  attention.dropout_p = 1 - 1 / a.keep_scale;
  attention.dropout_seed = a.dropout_seed, attention.dropout_offset = a.dropout_offset;
  attention.cu_seqlens_q = views.lengths(a.cu_q, a.batch + 1);
  attention.cu_seqlens_k = views.lengths(a.cu_k, a.batch + 1);
  if (a.cu_q) attention.max_seqlen_q = a.len_q, attention.max_seqlen_k = a.len_k;
  attention.seqlens_q = views.lengths(a.used_q, a.batch), attention.seqlens_k = views.lengths(a.used_k, a.batch);
  return attention;
}

constexpr Execution kHere{.device = Device::cpu, .num_threads = 1};

}  // namespace

void emulate(const MaskSummaryParams& p) {
  const MaskSummary& s = p.summary;
  const int64_t heads = p.units / std::max(1, mask_block_rows(s) * s.spans);
  const MaskShape shape{heads / std::max(1, p.heads), p.heads, s.rows, p.keys};
  const ConstRows mask{p.mask.data, DType::boolean, p.mask.batch_stride, p.mask.head_stride, p.mask.row_stride};
  cpu::summarize_mask({{}, mask, shape, s}, kHere);
}

void emulate(const ForwardParams& p) {
  const AttentionParams& a = p.attention;
  const Views views(a);
  flash_attention_forward(attention_of(a, views),
                          {.o = views.rows(p.o, a.total_q, a.heads_q, a.len_q, a.dim_v), .lse = views.lse(p.lse)},
                          kHere);
}

void emulate(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const Views views(a);
  const auto queries = [&](const RowsView& r, int64_t dim) {
    return views.rows(r, a.total_q, a.heads_q, a.len_q, dim);
  };
  const auto keys = [&](const RowsView& r, int64_t dim) { return views.rows(r, a.total_k, a.heads_k, a.len_k, dim); };
  const auto where_given = [](const auto& view, const Tensor& tensor) { return view.data ? tensor : Tensor{}; };
  BackwardTensors t{.o = queries(p.o, a.dim_v), .lse = views.lse(p.lse), .dout = queries(p.dout, a.dim_v)};
  t.dlse = views.lse(p.dlse);
  t.dq = where_given(p.dq, queries(p.dq, a.dim_qk));
  t.dk = where_given(p.dk, keys(p.dk, a.dim_qk));
  t.dv = where_given(p.dv, keys(p.dv, a.dim_v));
  t.dbias = views.scores(p.dbias, static_cast<DType>(p.dbias.element));
  t.dsink = views.head_values(p.dsink);
  flash_attention_backward(attention_of(a, views), t, kHere);
}

}  // namespace cuflash::test
