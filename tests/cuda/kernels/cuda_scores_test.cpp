// Penalties of ALiBi as the kernels of sm_90a compute them (kernels/attn/tile_scores.h), compiled for the host: linear in
// the columns of a tile, with an offset for each row.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "attn/tile_scores.h"
// clang-format on
#undef cuflash

#include <gtest/gtest.h>

namespace {

using namespace host_kernels;

struct Slope {
  float slope;
  float penalty(float distance) const { return alibi_penalty(slope, distance); }
};

constexpr int kTiles = 16;
using Scores = Accumulator<float>[1][kTiles];

// first_distance: of the lane's first row and column.
template <bool kLeft>
double largest_error(float slope, int first_distance) {
  Scores s = {};
  float offset[2];
  add_linear_penalties<kLeft>(s, Slope{slope}, first_distance, offset);
  double largest = 0;
  for (int n = 0; n < kTiles; ++n)
    for (int x = 0; x < 4; ++x) {
      const int distance = first_distance + x / 2 * 8 - (8 * n + x % 2);
      const double exact = -static_cast<double>(slope) * std::abs(distance);
      const double error = std::fabs(static_cast<double>(s[0][n].x[x]) + offset[x / 2] - exact);
      largest = std::max(largest, error / std::max(std::fabs(exact), 1e-30));
    }
  return largest;
}

// Both parts have the same sign, so that the error is relative to the penalty itself, however far away the tile is.
TEST(LinearPenalties, AreThoseOfAlibiOnBothSidesOfTheDiagonal) {
  constexpr int kColumns = 8 * kTiles;
  for (const float slope : {0.5f, 0.00390625f, 3.7f, 100.0f, -0.3f})
    for (const int away : {0, 1, 63, 1000, 100000}) {
      EXPECT_LT(largest_error<true>(slope, kColumns - 1 + away), 2e-7) << slope << " " << away;
      EXPECT_LT(largest_error<false>(slope, -8 - away), 2e-7) << slope << " " << away;
    }
}

}  // namespace
