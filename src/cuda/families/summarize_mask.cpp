#include "cuda/families/summarize_mask.h"

#include "cuda/families/params_forward.h"
#include "cuda/plan/plan_common.h"

namespace cuflash::cuda {
namespace {

Checked units_of(const MaskShape& s) {
  const int64_t block_rows = (s.rows + kMaskBlock - 1) / kMaskBlock, spans = (s.keys + kMaskSpan - 1) / kMaskSpan;
  return Checked(s.batch) * s.heads * block_rows * spans;
}

constexpr int kThreads = num_threads(MaskSummaryConfig{}), kWarps = kThreads / 32;

int64_t ctas_of(const MaskShape& s) {
  const int64_t units = units_of(s).value("mask: the number of its blocks is");
  return units / kWarps + (units % kWarps != 0);
}

bool starts_on_16_bytes(const ConstRows& mask) {
  return (reinterpret_cast<uintptr_t>(mask.data) | static_cast<uintptr_t>(mask.batch_stride) |
          static_cast<uintptr_t>(mask.head_stride) | static_cast<uintptr_t>(mask.row_stride)) %
             16 ==
         0;
}

}  // namespace

constinit const KernelType summarize_mask{.name = "summarize_mask",
                                          .header = "portable/summarize_mask.h",
                                          .config = "MaskSummaryConfig",
                                          .params = "MaskSummaryParams",
                                          .bounds = "num_threads(C)",
                                          .config_ints = kInts<MaskSummaryConfig>};

Launch plan_mask_summary(const ConstRows& mask, const MaskShape& shape, const Arch& arch) {
  const MaskSummaryConfig c{Element::f32, starts_on_16_bytes(mask)};
  return launch_of(key_of(summarize_mask, arch, c), ctas_of(shape), kThreads, 0);
}

void require_summary_fits_grid(const MaskShape& shape) { launch_of({}, ctas_of(shape), kThreads, 0); }

NeededKeys needed_keys(const Problem& p) {
  if (p.packed() || p.used_q || p.used_k) return {};
  const int64_t shift = p.top_left ? 0 : p.len_k - p.len_q;
  return {shift - p.window_left, shift + p.window_right + 1};
}

MaskSummaryParams mask_summary_params(const ConstRows& mask, const MaskShape& shape, const MaskSummary& summary,
                                      const NeededKeys& needed) {
  MaskSummaryParams p{};
  p.low = needed.low, p.high = needed.high;
  p.mask = view_of(mask), p.summary = summary;
  p.heads = static_cast<int>(shape.heads), p.keys = static_cast<int>(shape.keys);
  p.units = units_of(shape).value("mask: the number of its blocks is");
  return p;
}

}  // namespace cuflash::cuda
