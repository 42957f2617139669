#include "cuda/driver/tensor_map.h"

#include <algorithm>
#include <bit>

#include "config.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/rows.h"
#include "cuda/driver/tensor_map_cache.h"

namespace cuflash::cuda {
namespace {

constexpr int64_t kUnit = 16,
                  kStrideLimit = int64_t{1} << 40;  // unit and limit of strides in bytes, from the driver's manual

CUtensorMapDataType type_of(DType type) {
  if (type == DType::boolean) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

TensorMapLayout layout_of(const ConstRows& r, const RowsExtent& e, int box_rows, int box_columns, int box_heads) {
  const auto size = static_cast<uint64_t>(size_of(r.dtype));
  const auto extent = [](int64_t stride, int64_t count) { return stride == 0 ? 1 : static_cast<uint64_t>(count); };
  const uint64_t row_bytes = (static_cast<uint64_t>(e.dim) * size + kUnit - 1) / kUnit * kUnit;
  const auto bytes = [&](int64_t stride) { return stride == 0 ? row_bytes : static_cast<uint64_t>(stride) * size; };
  return {static_cast<unsigned>(box_rows),
          static_cast<unsigned>(box_columns),
          static_cast<unsigned>(box_heads),
          type_of(r.dtype),
          {static_cast<uint64_t>(e.dim), extent(r.row_stride, e.rows), extent(r.head_stride, e.heads),
           extent(r.batch_stride, e.batch)},
          {bytes(r.row_stride), bytes(r.head_stride), bytes(r.batch_stride)}};
}

// Rows of f32 and mask bits are not swizzled. All other box rows have 128 bytes and the 128-byte swizzle.
CUtensorMapSwizzle swizzle_of(const TensorMapLayout& layout) {
  if (layout.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || layout.type == CU_TENSOR_MAP_DATA_TYPE_UINT8)
    return CU_TENSOR_MAP_SWIZZLE_NONE;
  return CU_TENSOR_MAP_SWIZZLE_128B;
}

// Promoting more than 128 bytes to L2 costs a decode step 4% where keys of other heads lie
// between the rows (docs/lab/kv.md).
//
// The map is the caller's variable: g++ for aarch64 does not always align a return value as the driver requires.
void encode(const TensorMapLayout& layout, void* data, CUtensorMap& map) {
  const unsigned box[] = {layout.box_columns, layout.box_rows, layout.box_heads, 1};
  constexpr unsigned kEvery[] = {1, 1, 1, 1};
  check(driver().cuTensorMapEncodeTiled(&map, layout.type, 4, data, layout.extents.data(), layout.strides.data(), box,
                                        kEvery, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(layout),
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
}

bool replace_address(CUtensorMap& map, void* data) {
  const auto replace = driver().cuTensorMapReplaceAddress;
  return replace && replace(&map, data) == CUDA_SUCCESS;
}

}  // namespace

RowsExtent query_extent(const Problem& p) { return {p.dim_qk, p.packed() ? p.total_q : p.len_q, p.heads_q, p.batch}; }
RowsExtent key_extent(const Problem& p) { return {p.dim_qk, p.packed() ? p.total_k : p.len_k, p.heads_k, p.batch}; }
RowsExtent value_extent(const Problem& p) { return {p.dim_v, p.packed() ? p.total_k : p.len_k, p.heads_k, p.batch}; }
RowsExtent score_extent(const Problem& p, const ConstRows& rows) {
  return {p.len_k, rows.row_stride == 0 ? 1 : p.len_q, p.heads_q, p.batch};
}
RowsExtent output_extent(const Problem& p) { return {p.dim_v, p.packed() ? p.total_q : p.len_q, p.heads_q, p.batch}; }

bool has_tensor_map(const ConstRows& r, const RowsExtent& e) {
  const int64_t longest =
      std::max({r.row_stride, r.head_stride, r.batch_stride}) * static_cast<int64_t>(size_of(r.dtype));
  return has_vector_rows(r) && longest < kStrideLimit && (r.row_stride != 0 || e.rows == 1) && r.data && e.rows > 0 &&
         e.heads > 0 && e.batch > 0;
}

static TensorMap map_of(const TensorMapLayout& layout, void* data) {
  // One cache per thread needs no locks. Its maps serve all devices, since the kernels that take them run on one
  // architecture.
  constinit static thread_local TensorMapCache cache;
  CUtensorMap map;
  const bool known = cache.find(layout, map);
  if (!known || !replace_address(map, data)) encode(layout, data, map);
  if (!known) cache.add(layout, map);
  return std::bit_cast<TensorMap>(map);
}

TensorMap tensor_map(const ConstRows& r, const RowsExtent& e, int box_rows, int box_columns, int box_heads) {
  return map_of(layout_of(r, e, box_rows, box_columns, box_heads), const_cast<void*>(r.data));
}

TensorMap tensor_map(const float* rows, int64_t count, int columns) {
  const auto bytes = static_cast<uint64_t>(columns) * sizeof(float);
  const TensorMapLayout layout{1,
                               static_cast<unsigned>(columns),
                               1,
                               CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                               {static_cast<uint64_t>(columns), static_cast<uint64_t>(count), 1, 1},
                               {bytes, bytes, bytes}};
  return map_of(layout, const_cast<float*>(rows));
}

}  // namespace cuflash::cuda
