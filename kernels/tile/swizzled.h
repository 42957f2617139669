// A matrix of 16-bit elements in shared memory as TensorMaps write it and warpgroup products read it: panels of 64
// columns, one after the other, each with rows of 128 bytes whose 16-byte pieces are exchanged by the row's number modulo
// 8 (the 128-byte swizzle). Eight rows are 1024 bytes, and a panel starts on a multiple of that.
#pragma once

#include "ptx/wgmma.h"

namespace cuflash {

template <int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kPanels = num_panels(kColumns);
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = swizzled_bytes(kRows, kColumns);
  static_assert(kPanelBytes % 1024 == 0);

  unsigned address;  // shared_address of the first panel

  // Of eight elements of a row, from a column on that is a multiple of 8.
  __device__ __forceinline__ unsigned piece(int row, int column) const {
    return address + column / kPanelColumns * kPanelBytes + row * kPanelRowBytes + (column / 8 ^ row) % 8 * 16;
  }

  __device__ __forceinline__ void* piece_memory(int row, int column) const {
    return __cvta_shared_to_generic(piece(row, column));
  }

  // As Tile has it, for matrices at multiples of 16: what is exchanged depends on the lane alone, but for one constant.
  __device__ __forceinline__ unsigned lane_address(int lane_row, int lane_byte, int row, int column) const {
    const int panel = column / kPanelColumns;
    return address + panel * kPanelBytes + (row + lane_row) * kPanelRowBytes +
           ((lane_byte ^ lane_row % 8 * 16) ^ column % kPanelColumns * 2);
  }

  // PTX ISA, "Matrix descriptor format": address, leading and stride offset in units of 16 bytes, swizzle mode. `bytes`
  // beyond the first panel's begin; no carry leaves the lower word.
  __device__ __forceinline__ Descriptor descriptor(int bytes, int leading_bytes) const {
    constexpr unsigned kSwizzle128 = 1u << 30, kEightRows = 1024 >> 4;
    const unsigned low = ((address & 0x3ffff) >> 4 | static_cast<unsigned>(leading_bytes >> 4) << 16) +
                         static_cast<unsigned>(bytes >> 4);
    return Descriptor{kSwizzle128 | kEightRows} << 32 | low;
  }
  // Columns [16 step, 16 step + 16) of all rows from `first` on, a multiple of 8, the reduction along the rows. The leading
  // offset does not matter.
  __device__ __forceinline__ Descriptor along_rows(int step, int first = 0) const {
    return descriptor(first * kPanelRowBytes + step / 4 * kPanelBytes + step % 4 * 32, 16);
  }
  // Rows [16 step, 16 step + 16) of all columns, the reduction across the rows. The leading offset leads to the next panel.
  __device__ __forceinline__ Descriptor across_rows(int step) const { return descriptor(step * 2048, kPanelBytes); }
};

}  // namespace cuflash
