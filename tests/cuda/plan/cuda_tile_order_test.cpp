// The order in which persistent CTAs take tiles: every tile once for any shape, and no CTA much more than its share if
// tiles differ in length.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/plan/tile_order.h"
#include "cuda/plan/typical.h"

namespace cuflash::cuda {
namespace {

constexpr int kTileQ = 192;

Problem problem(int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal) {
  return forward_of({.dim_qk = dim,
                     .dim_v = dim,
                     .causal = causal,
                     .batch = batch,
                     .heads_q = heads,
                     .heads_k = heads,
                     .len_q = length,
                     .len_k = length});
}

// Counts how often each tile is taken, and adds up the work of each CTA; `cost` is the work of a tile.
struct Dealt {
  std::vector<int> times;
  std::vector<double> loads;

  Dealt(const TileOrder& order, unsigned ctas, auto cost) : times(size_t{order.heads} * order.q_tiles), loads(ctas) {
    for (unsigned round = 0; round < order.rounds; ++round)
      for (unsigned cta = 0; cta < ctas; ++cta) {
        const TileCoord tile = tile_of(order, cta, ctas, round);
        if (!tile.exists) continue;
        ++times.at(size_t{tile.head} * order.q_tiles + tile.q_tile);
        loads[cta] += cost(tile.q_tile);
      }
  }
};

TEST(TileOrder, EveryTileIsTakenOnce) {
  for (const int64_t batch : {1, 3})
    for (const int64_t heads : {1, 2, 16, 33})
      for (const int64_t length : {1, 192, 193, 1000, 5000})
        for (const int64_t ctas : {1, 2, 7, 132})
          for (const bool causal : {false, true}) {
            const Problem p = problem(batch, heads, length, 128, causal);
            const int64_t tiles = batch * heads * ((length + kTileQ - 1) / kTileQ);
            const auto used = static_cast<unsigned>(std::min(ctas, tiles));  // as launches do
            const Dealt dealt(tile_order(p, kTileQ, used), used, [](unsigned) { return 1; });
            ASSERT_EQ(std::count(dealt.times.begin(), dealt.times.end(), 1), tiles)
                << "batch " << batch << " heads " << heads << " length " << length << " ctas " << used
                << (causal ? " causal" : "");
          }
}

// 16384 tokens of hidden size 2048, as in the benchmarks.
TEST(TileOrder, CausalTilesAreSharedEvenly) {
  constexpr unsigned kCtas = 132;
  for (const int64_t dim : {64, 128, 256})
    for (const int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
      const TileOrder order = tile_order(problem(16384 / length, 2048 / dim, length, dim, true), kTileQ, kCtas);
      const Dealt dealt(order, kCtas, [](unsigned q_tile) { return q_tile + 1.5; });
      double sum = 0;
      for (const double load : dealt.loads) sum += load;
      const double largest = *std::max_element(dealt.loads.begin(), dealt.loads.end());
      EXPECT_GT(sum / kCtas / largest, 0.9) << "D=" << dim << " S=" << length;
    }
}

// Keys of a single head may be more than L2 holds.
TEST(TileOrder, TilesOfLongSequencesAreSharedEvenly) {
  constexpr unsigned kCtas = 132;
  for (const int64_t dim : {64, 128, 256})
    for (const int64_t heads : {8, 16, 32})
      for (const int64_t length : {20000, 24576, 32768, 40000, 50000, 65536, 131072}) {
        const Dealt dealt(tile_order(problem(1, heads, length, dim, true), kTileQ, kCtas), kCtas,
                          [](unsigned q_tile) { return q_tile + 1.5; });
        EXPECT_EQ(std::count(dealt.times.begin(), dealt.times.end(), 1), static_cast<int64_t>(dealt.times.size()));
        double sum = 0;
        for (const double load : dealt.loads) sum += load;
        EXPECT_GT(sum / kCtas / *std::max_element(dealt.loads.begin(), dealt.loads.end()), 0.93)
            << "D=" << dim << " H=" << heads << " S=" << length;
      }
}

// Tiles of a window are equally long, but for the first of each head.
TEST(TileOrder, TilesOfWindowsAreSharedEvenly) {
  constexpr unsigned kCtas = 132;
  constexpr int kTile = 128;
  struct {
    int64_t batch, heads, length, window;
  } constexpr cases[] = {{4, 16, 4096, 1024}, {1, 16, 16384, 1024}, {4, 16, 4096, 2048}, {2, 32, 8192, 4096},
                         {2, 16, 2048, 1024}, {3, 10, 5000, 700},   {8, 12, 3000, 1500}, {2, 64, 8192, 128}};
  for (const auto& [batch, heads, length, window] : cases) {
    Problem p = problem(batch, heads, length, 128, true);
    p.window_left = window - 1;
    const Dealt dealt(tile_order(p, kTile, kCtas), kCtas, [&](unsigned q_tile) {
      const int64_t first = q_tile * int64_t{kTile}, begin = std::max<int64_t>(0, first - window + 1);
      return static_cast<double>(q_tile + 1 - begin / kTile) + 2;  // a tile costs about two key tiles beyond its own
    });
    EXPECT_EQ(std::count(dealt.times.begin(), dealt.times.end(), 1), static_cast<int64_t>(dealt.times.size()));
    double sum = 0;
    for (const double load : dealt.loads) sum += load;
    EXPECT_GT(sum / kCtas / *std::max_element(dealt.loads.begin(), dealt.loads.end()), 0.95)
        << "B=" << batch << " H=" << heads << " S=" << length << " window " << window;
  }
}

}  // namespace
}  // namespace cuflash::cuda
