// Tensor maps: tensors as TMA instructions address them.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// The extents of a tensor of rows; a dimension of stride 0 counts as one.
struct RowsExtent {
  int64_t dim, rows, heads, batch;
};

RowsExtent query_extent(const Problem& problem);
RowsExtent key_extent(const Problem& problem);
RowsExtent value_extent(const Problem& problem);
RowsExtent output_extent(const Problem& problem);
// The extent of a bias or mask tensor. Rows that are broadcast over the queries count as one.
RowsExtent score_extent(const Problem& problem, const ConstRows& rows);

// Whether tensor_map can describe these rows. The driver would reject all others, or TMA would read them wrongly.
bool has_tensor_map(const ConstRows& rows, const RowsExtent& extent);

// Boxes have box_rows rows of 64 columns, of box_heads heads, swizzled as in kernels/tile/swizzled.h. Allocates nothing
// and needs no device. Cheap for a layout that this thread has used recently, at any address. For a mask tensor of
// bytes, boxes have 64 or 128 columns, swizzled as in kernels/sm90/forward/bias_tiles.h.
TensorMap tensor_map(const ConstRows& rows, const RowsExtent& extent, int box_rows, int box_columns = kPanelColumns,
                     int box_heads = 1);
// Contiguous rows of f32, at most as wide as a box; a box is one row, and is not swizzled.
TensorMap tensor_map(const float* rows, int64_t count, int columns);

}  // namespace cuflash::cuda
