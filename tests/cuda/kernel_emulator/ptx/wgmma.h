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

  static unsigned short load(unsigned at) {
    unsigned short element;
    std::memcpy(&element, memory + (at ^ (at >> 7 & 7) << 4), sizeof element);
    return element;
  }
  unsigned short along_rows(int row, int k) const {
    return load(address + static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8 * 128 + k * 2));
  }
  unsigned short across_rows(int k, int column) const {
    return load(address + static_cast<unsigned>(column / 64) * leading + static_cast<unsigned>(k / 8) * stride +
                static_cast<unsigned>(k % 8 * 128 + column % 64 * 2));
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
    for (int r = 0; r < 2; ++r) {
      const int row = lane_number() / 4 + r * 8;
      double of_row[16];
      for (int k = 0; k < 16; ++k) of_row[k] = static_cast<double>(widen<E>(a(row, k)));
      for (int n = 0; n < kColumns / 4; ++n) {
        const int column = n / 2 * 8 + lane_number() % 4 * 2 + n % 2;
        double sum = 0;
        for (int k = 0; k < 16; ++k)
          sum += of_row[k] * widen<E>(kTransposed ? matrix.across_rows(k, column) : matrix.along_rows(column, k));
        float& x = d[n / 2].x[r * 2 + n % 2];
        x = static_cast<float>(x + sum);
      }
    }
  }
};

}  // namespace cuflash
