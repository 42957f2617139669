// Host version of kernels/ptx/wgmma.h. A warp's rows of a product do not depend on registers of other warps: each lane
// computes its own sums, in double.
#pragma once

#include "tile/operand.h"

namespace cuflash {

using Descriptor = unsigned long long;

// PTX ISA, "Matrix descriptor format", for matrices in the 128-byte swizzle.
struct DescribedMatrix {
  unsigned address, leading, stride;

  explicit DescribedMatrix(Descriptor d) : address(field(d, 0)), leading(field(d, 16)), stride(field(d, 32)) {}
  static unsigned field(Descriptor d, int bit) { return static_cast<unsigned>(d >> bit & 0x3fff) << 4; }

  // Adjacent elements, within 16 bytes.
  template <int kCount>
  static void load(unsigned at, unsigned short* to) {
    std::memcpy(to, memory + (at ^ (at >> 7 & 7) << 4), kCount * sizeof *to);
  }
  unsigned short along_rows(int row, int k) const {
    unsigned short element;
    load<1>(row_address(row) + static_cast<unsigned>(k * 2), &element);
    return element;
  }
  // Elements 0 to 15 of two adjacent columns, of a matrix of columns or, if it is transposed, of rows.
  template <bool kTransposed>
  void load_columns(int column, unsigned short (&to)[2][16]) const {
    if constexpr (!kTransposed) {
      for (int n = 0; n < 2; ++n)
        for (int k = 0; k < 16; k += 8) load<8>(row_address(column + n) + static_cast<unsigned>(k * 2), &to[n][k]);
    } else {
      for (int k = 0; k < 16; ++k) {
        unsigned short pair[2];
        load<2>(address + static_cast<unsigned>(column / 64) * leading + static_cast<unsigned>(k / 8) * stride +
                    static_cast<unsigned>(k % 8 * 128 + column % 64 * 2),
                pair);
        to[0][k] = pair[0], to[1][k] = pair[1];
      }
    }
  }

 private:
  unsigned row_address(int row) const {
    return address + static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8 * 128);
  }
};

template <Element E, int kColumns, bool kTransposed>
struct WarpgroupProduct {
  using Sums = Accumulator<float>[kColumns / 8];

  static void start(Sums& d, Descriptor a, Descriptor b) {
    for (Accumulator<float>& tile : d) tile = {};
    add(d, a, b);
  }
  static void add(Sums& d, Descriptor a, Descriptor b) {
    const int warp_row = static_cast<int>(threadIdx.x) / kernel_emulator::kWarp % 4 * 16;
    add_rows(d, b, [&](int row, int k) { return DescribedMatrix(a).along_rows(warp_row + row, k); });
  }
  static void add(Sums& d, const unsigned (&a)[4], Descriptor b) {
    struct Fragment {
      unsigned r[4];
    } mine{a[0], a[1], a[2], a[3]};
    Fragment all[kernel_emulator::kWarp];
    std::memcpy(all, kernel_emulator::exchange(&mine, sizeof mine), sizeof all);
    add_rows(d, b, [&](int row, int k) {
      return static_cast<unsigned short>(all[row % 8 * 4 + k % 8 / 2].r[row / 8 + k / 8 * 2] >> k % 2 * 16);
    });
  }

 private:
  // a(row of the warp, k)
  template <class A>
  static void add_rows(Sums& d, Descriptor b, A a) {
    const DescribedMatrix matrix(b);
    double of_rows[2][16];
    for (int r = 0; r < 2; ++r)
      for (int k = 0; k < 16; ++k) of_rows[r][k] = static_cast<double>(widen<E>(a(lane_number() / 4 + r * 8, k)));
    // Four sums at a time, none of which waits for another.
    for (int tile = 0; tile < kColumns / 8; ++tile) {
      unsigned short columns[2][16];
      matrix.load_columns<kTransposed>(tile * 8 + lane_number() % 4 * 2, columns);
      double sums[4] = {};
      for (int k = 0; k < 16; ++k) {
        const double first = widen<E>(columns[0][k]), second = widen<E>(columns[1][k]);
        sums[0] += of_rows[0][k] * first, sums[1] += of_rows[0][k] * second;
        sums[2] += of_rows[1][k] * first, sums[3] += of_rows[1][k] * second;
      }
      for (int n = 0; n < 4; ++n) d[tile].x[n] = static_cast<float>(d[tile].x[n] + sums[n]);
    }
  }
};

}  // namespace cuflash
