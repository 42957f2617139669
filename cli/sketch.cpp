#include "cli/sketch.h"

namespace cuflash::cli {

namespace {

class Shapes {
 public:
  explicit Shapes(const ExplainOptions& options) : options_(options) {}

  Tensor rows(int64_t heads, int64_t length, int64_t dim) {
    void* data = placeholders_.next(options_.dtype, options_.batch, heads, length, dim);
    return options_.layout == Layout::bshd ? bshd(data, options_.dtype, options_.batch, length, heads, dim)
                                           : bhsd(data, options_.dtype, options_.batch, heads, length, dim);
  }
  Tensor plain(DType type, int64_t extent) { return contiguous(placeholders_.next(type, extent), type, extent); }
  Tensor scores(DType type, int64_t len_q, int64_t len_k) {
    return contiguous(placeholders_.next(type, len_q, len_k), type, 1, 1, len_q, len_k);
  }
  Tensor lse(int64_t heads, int64_t length) {
    const DType type = state_type(options_.dtype);
    void* data = placeholders_.next(type, options_.batch, heads, length);
    return contiguous(data, type, options_.batch, heads, length);
  }

 private:
  const ExplainOptions& options_;
  Placeholders placeholders_;
};

}  // namespace

Sketch::Sketch(const ExplainOptions& options) : attention(options.attention) {
  const int64_t heads_k = options.heads_k.value_or(options.heads);
  const int64_t seq_k = options.seq_k.value_or(options.seq_q);
  const int64_t dim_v = options.dim_v.value_or(options.dim);
  Shapes shapes(options);
  const auto q = [&] { return shapes.rows(options.heads, options.seq_q, options.dim); };
  const auto k = [&] { return shapes.rows(heads_k, seq_k, options.dim); };
  const auto v = [&] { return shapes.rows(heads_k, seq_k, dim_v); };
  const auto o = [&] { return shapes.rows(options.heads, options.seq_q, dim_v); };
  const auto lse = [&] { return shapes.lse(options.heads, options.seq_q); };
  const auto bias = [&] { return shapes.scores(options.dtype, options.seq_q, seq_k); };
  const auto head_values = [&] { return shapes.plain(DType::f32, options.heads); };

  attention.q = q(), attention.k = k(), attention.v = v();
  if (options.alibi) attention.alibi_slopes = head_values();
  if (options.bias) attention.bias = bias();
  if (options.mask) attention.mask = shapes.scores(DType::boolean, options.seq_q, seq_k);
  if (options.sink) attention.sink = head_values();

  if (!options.backward) {
    outputs.o = o();
    if (options.lse) outputs.lse = lse();
    return;
  }
  tensors = {.o = o(), .lse = lse(), .dout = o(), .dq = q(), .dk = k(), .dv = v()};
  if (options.bias) tensors.dbias = bias();
  if (options.sink) tensors.dsink = head_values();
}

}  // namespace cuflash::cli
