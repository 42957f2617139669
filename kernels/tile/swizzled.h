// A matrix of 16-bit elements in shared memory as TMA writes it and wgmma reads it: consecutive panels of 64 columns
// with rows of 128 bytes, in the 128-byte swizzle (16-byte pieces are permuted by XOR with row % 8). Eight rows are
// 1024 bytes, and each panel is aligned to that.
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

  // Address of eight elements of a row; column is a multiple of 8.
  __device__ __forceinline__ unsigned piece(int row, int column) const {
    return address + column / kPanelColumns * kPanelBytes + row * kPanelRowBytes + (column / 8 ^ row) % 8 * 16;
  }

  __device__ __forceinline__ void* piece_memory(int row, int column) const {
    return __cvta_shared_to_generic(piece(row, column));
  }

  // Tile::lane_address for matrices at multiples of 16: apart from a constant, the swizzle depends only on the lane.
  __device__ __forceinline__ unsigned lane_address(int lane_row, int lane_byte, int row, int column) const {
    const int panel = column / kPanelColumns;
    return address + panel * kPanelBytes + (row + lane_row) * kPanelRowBytes +
           ((lane_byte ^ lane_row % 8 * 16) ^ column % kPanelColumns * 2);
  }

  // PTX ISA, "Matrix descriptor format": address, leading and stride offset in units of 16 bytes, swizzle mode. `bytes`
  // is an offset from the first panel; no carry leaves the lower word.
  __device__ __forceinline__ Descriptor descriptor(int bytes, int leading_bytes) const {
    constexpr unsigned kSwizzle128 = 1u << 30, kEightRows = 1024 >> 4;
    const unsigned low = ((address & 0x3ffff) >> 4 | static_cast<unsigned>(leading_bytes >> 4) << 16) +
                         static_cast<unsigned>(bytes >> 4);
    return Descriptor{kSwizzle128 | kEightRows} << 32 | low;
  }
  // K-major operand: columns [16 step, 16 step + 16) of all rows from `first` on, a multiple of 8. The leading offset
  // is ignored.
  __device__ __forceinline__ Descriptor along_rows(int step, int first = 0) const {
    return descriptor(first * kPanelRowBytes + step / 4 * kPanelBytes + step % 4 * 32, 16);
  }
  // MN-major operand: rows [16 step, 16 step + 16) of all columns. The leading offset leads to the next panel.
  __device__ __forceinline__ Descriptor across_rows(int step) const { return descriptor(step * 2048, kPanelBytes); }
};

}  // namespace cuflash
