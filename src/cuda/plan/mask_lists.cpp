#include "cuda/plan/mask_lists.h"

#include "cuda/driver/tensor_map.h"
#include "cuda/plan/plan_common.h"
#include "problem/mask_shape.h"

namespace cuflash::cuda {
namespace {

// The dimensions along which a mask, or its lists, differ. A summary that the call makes later has the extents of the
// tensor.
struct MaskVariation {
  bool by_batch, by_head;
};
MaskVariation mask_variation(const Problem& p) {
  if (p.summary.blocks) return {p.summary.batch_step != 0, p.summary.head_step != 0};
  const MaskShape shape = mask_shape_of(p);
  return {shape.batch > 1, shape.heads > 1};
}
// The dimensions along which the lists differ. Positions limit the tiles of a list, so sequences of different lengths
// have different lists.
MaskVariation lists_of(const Problem& p) {
  const MaskVariation mask = mask_variation(p);
  return {mask.by_batch || p.packed() || p.used_q || p.used_k, mask.by_head};
}
Checked count_of(const Problem& p, const MaskListExtent& e) {
  const MaskVariation lists = lists_of(p);
  return Checked(lists.by_batch ? p.batch : 1) * (lists.by_head ? e.heads : 1) * e.tiles;
}
int64_t stride_of(const MaskListExtent& e) {
  return (e.longest * (e.has_blocks ? 2 : 1) + kMaskListHeader + 7) / 8 * 8;
}

}  // namespace

bool mask_differs_by_head(const Problem& p) { return mask_variation(p).by_head; }

Launch plan_mask_lists(const KernelKey& kernel, const Problem& p, const MaskListExtent& e) {
  constexpr int64_t kWarps = kMaskListThreads / 32;
  const int64_t lists = count_of(p, e).value("mask: the number of its tiles is");
  // Every problem gets the same amount of shared memory, because a kernel is loaded with that of its first launch.
  constexpr int kTilingBytes = kMaxTilingGroups * kTilingGroupBytes;
  Launch launch =
      launch_of(kernel, lists / kWarps + (lists % kWarps != 0), kMaskListThreads, e.has_blocks ? kTilingBytes : 0);
  launch.programmatic = true;
  return launch;
}

size_t mask_list_bytes(const Problem& p, const MaskListExtent& e) {
  return workspace_bytes(count_of(p, e) * stride_of(e) * int64_t{sizeof(int)});
}

MaskLists mask_lists(const Problem& p, const MaskListExtent& e, void* data) {
  const MaskVariation lists = lists_of(p);
  const int heads = lists.by_head ? static_cast<int>(e.heads) : 1;
  return {static_cast<int*>(data),
          lists.by_batch ? heads : 0,
          lists.by_head,
          static_cast<int>(e.tiles),
          static_cast<int>(stride_of(e)),
          e.has_blocks ? static_cast<int>(kMaskListHeader + e.longest) : 0,
          e.groups != 0};
}

TensorMap mask_bits_map(const Problem& p, int box_bytes) {
  const MaskSummary& m = p.summary;
  const int64_t row_bytes = int64_t{m.spans} * kMaskSpanWords * 4;
  const int64_t heads = (m.batch_step != 0 ? p.batch : 1) * (m.head_step != 0 ? p.heads_q : 1);
  const ConstRows bits{m.bits, DType::boolean, 0, heads > 1 ? m.rows * row_bytes : 0, m.rows > 1 ? row_bytes : 0};
  return tensor_map(bits, {row_bytes, m.rows, heads, 1}, m.rows > 1 ? kWarpgroupRows : 1, box_bytes);
}

}  // namespace cuflash::cuda
