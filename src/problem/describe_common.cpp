#include "problem/describe_common.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "problem/mask_shape.h"

namespace cuflash {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max(), kSmallestFloat = std::numeric_limits<float>::min();

// Kernels compute the exponential of a score as a power of two, so f32 must hold scale times log2(e). f64 inputs follow
// the same rule.
constexpr double kLargestScale = 2.3586e38, kLog2e = 1.4426950408889634;
static_assert(kLargestScale * kLog2e <= kLargestFloat && 1.0001 * kLargestScale * kLog2e > kLargestFloat);

int64_t window_side(const char* name, int64_t window) {
  if (window < -1) reject(name, ": got ", window, ", must be -1 (unbounded) or at least 0");
  return window < 0 ? kUnbounded : std::min(window, kUnbounded);
}

}  // namespace

void describe_scores(Problem& p, const cuflash_attention& a) {
  if (a.has_scale && !(std::abs(a.scale) <= kLargestScale))
    reject("scale: got ", a.scale, ", must be between ", -kLargestScale, " and ", kLargestScale,
           ", so that scale * log2(e) fits into f32");
  p.scale = a.has_scale ? a.scale : 1 / std::sqrt(static_cast<double>(p.dim_qk));
  if (a.softcap != 0 && !(a.softcap >= kSmallestFloat && a.softcap <= kLargestFloat))
    reject("softcap: got ", a.softcap, ", must be 0 (off) or a positive number in the range of f32");
  p.softcap = a.softcap;
  p.window_left = window_side("window_left", a.window_left);
  p.window_right = window_side("window_right", a.window_right);
  if (a.causal) p.window_right = 0;
  if (a.alignment != CUFLASH_BOTTOM_RIGHT && a.alignment != CUFLASH_TOP_LEFT)
    reject("alignment: got ", a.alignment, ", must be CUFLASH_BOTTOM_RIGHT (0) or CUFLASH_TOP_LEFT (1)");
  p.top_left = a.alignment == CUFLASH_TOP_LEFT;
  if (!(a.dropout_p >= 0 && a.dropout_p < 1))
    reject("dropout_p: got ", a.dropout_p, ", must be at least 0 and below 1");
  p.dropout = {a.dropout_p, a.dropout_seed, a.dropout_offset};
}

// bias and mask: [B or 1, Hq or 1, Sq or 1, Sk].
static ConstRows describe_score_tensor(const Problem& p, const Argument& a) {
  require_tensor(a, 4, "[B or 1, Hq or 1, Sq or 1, Sk]");
  if (a.extent(0) != 1) require_extent(a, 0, p.batch, "the batch, or 1");
  if (a.extent(1) != 1) require_extent(a, 1, p.heads_q, "the heads of q, or 1");
  if (a.extent(2) != 1) require_extent(a, 2, p.len_q, p.packed() ? "max_seqlen_q, or 1" : "the length of q, or 1");
  require_extent(a, 3, p.len_k, p.packed() ? "max_seqlen_k" : "the length of k");
  return rows_of(a, a.t.data);
}

static void describe_mask_summary(Problem& p, const cuflash_attention& a, const Argument& summary) {
  require_summary_memory(summary);
  const int64_t* s = a.mask_summary_shape;
  const MaskShape shape{s[0], s[1], s[2], s[3]};
  const auto fits = [](int64_t extent, int64_t whole) { return extent == whole || extent == 1; };
  const bool empty = p.batch == 0 || p.len_q == 0;  // a mask that repeats may have extents of 0 or 1 then
  if (!fits(shape.batch, p.batch) || !fits(shape.heads, p.heads_q) || !fits(shape.rows, p.len_q) ||
      shape.keys != p.len_k)
    reject("mask_summary: its mask_summary_shape ", shape, " must be [", p.batch, " or 1, ", p.heads_q, " or 1, ",
           p.len_q, " or 1, ", p.len_k, "]; give a summary that cuflash_summarize_mask made of a mask of this call");
  if (p.mask && !empty && mask_shape_of(p) != shape)
    reject("mask_summary: is that of a mask ", shape, ", but mask is ", mask_shape_of(p),
           "; give the summary of this mask, or no mask");
  require_summary_size(summary, shape);
  p.mask_len_q = p.len_q, p.mask_len_k = p.len_k;
  p.summary = mask_summary_at(shape, const_cast<void*>(a.mask_summary.data));
}

void describe_score_inputs(Problem& p, const cuflash_attention& a) {
  if (const Argument slopes("alibi_slopes", a.alibi_slopes); slopes.given()) {
    require_tensor(slopes, slopes.t.rank == 2 ? 2 : 1, "[Hq] or [B, Hq]");
    require_type(slopes, DType::f32, "the type of slopes");
    require_extent(slopes, slopes.t.rank - 1, p.heads_q, "the heads of q");
    if (slopes.t.rank == 2) require_extent(slopes, 0, p.batch, "the batch");
    p.slopes = head_values_of(slopes, a.alibi_slopes.data);
  }
  if (const Argument bias("bias", a.bias); bias.given()) {
    p.bias = describe_score_tensor(p, bias);
    require_value_type(bias, p.dtype);
  }
  if (const Argument mask("mask", a.mask); mask.given()) {
    p.mask = describe_score_tensor(p, mask);
    p.mask_len_q = p.len_q, p.mask_len_k = p.len_k;
    require_type(mask, DType::boolean, "one byte an element");
  }
  if (const Argument summary("mask_summary", a.mask_summary); summary.given()) describe_mask_summary(p, a, summary);
  if (const Argument sink("sink", a.sink); sink.given()) {
    require_tensor(sink, 1, "[Hq]");
    require_value_type(sink, p.dtype);
    require_extent(sink, 0, p.heads_q, "the heads of q");
    p.sink = head_values_of(sink, a.sink.data);
  }
}

void require_like_o(const Argument& t, const TensorView& q, int64_t dim_v, Written written) {
  const bool packed = q.rank == 3;
  const char* shape = packed ? "[Tq, Hq, Dv]" : "[B, Hq, Sq, Dv]";
  written == Written::now ? require_output(t, q.rank, shape) : require_tensor(t, q.rank, shape);
  for (int d = 0; d < q.rank - 1; ++d) require_extent(t, d, q.shape[d], "as in q");
  require_extent(t, q.rank - 1, dim_v, "the head size of v");
  require_value_type(t, static_cast<DType>(q.dtype));
}

void require_like_lse(const Argument& t, const TensorView& q, Written written) {
  const bool packed = q.rank == 3;
  const char* shape = packed ? "[Hq, Tq]" : "[B, Hq, Sq]";
  written == Written::now ? require_output(t, q.rank - 1, shape) : require_tensor(t, q.rank - 1, shape);
  require_extent(t, 0, packed ? q.shape[1] : q.shape[0], packed ? "the heads of q" : "the batch of q");
  require_extent(t, 1, packed ? q.shape[0] : q.shape[1], packed ? "the rows of q" : "the heads of q");
  if (!packed) require_extent(t, 2, q.shape[2], "the length of q");
  require_type(t, state_type(static_cast<DType>(q.dtype)), "f64 for f64 inputs and f32 for the others");
}

}  // namespace cuflash
