// Tensors as the copy instructions of Hopper know them.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// How many there are of each; a dimension of stride 0 counts as one.
struct RowsExtent {
  int64_t dim, rows, heads, batch;
};

RowsExtent query_extent(const Problem& problem);
RowsExtent key_extent(const Problem& problem);
RowsExtent value_extent(const Problem& problem);
RowsExtent output_extent(const Problem& problem);

// Whether tensor_map can describe these rows: all that it says no to is refused by the driver, or read wrongly.
bool has_tensor_map(const ConstRows& rows, const RowsExtent& extent);

// Boxes are box_rows rows of 64 columns, swizzled as kernels/tile/swizzled.h has it. Allocates nothing, asks no device.
// Cheap for a layout that this thread has described lately, whatever the address.
TensorMap tensor_map(const ConstRows& rows, const RowsExtent& extent, int box_rows);
// Rows of f32 side by side, as many as a box may be wide; boxes are one of them, and not swizzled.
TensorMap tensor_map(const float* rows, int64_t count, int columns);

}  // namespace cuflash::cuda
