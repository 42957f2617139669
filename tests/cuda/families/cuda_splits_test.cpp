// Plans of sm_90a: forward calls that split keys, pack heads, list tiles or run the kernel over a KV cache, and the
// order in which CTAs take their work. No GPU is needed.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "cuda/families/registry.h"
#include "cuda/plan/tile_order.h"
#include "cuda/plan/typical.h"

namespace cuflash::cuda {
namespace {

const Arch kHopper = arch_named("sm_90a");

ForwardPlan plan_of(const ForwardProblem& p, const ForwardRun& run = {}) {
  return plan_forward(p, kHopper, KernelPreference::best, nullptr, run);
}
Typical few_queries(int64_t len_q, int64_t group = 1) {
  return {.batch = 1, .heads_q = 8 * group, .heads_k = 8, .len_q = len_q, .len_k = 32768};
}

TEST(Splits, FillTheDeviceWhereQueryTilesDoNot) {
  for (const int64_t group : {1, 4})
    for (const int64_t len_q : {1, 16, 64, 96, 128, 192, 256, 300}) {
      const ForwardPlan plan = plan_of(forward_of(few_queries(len_q, group)));
      EXPECT_GT(plan.splits, 1) << len_q;
      const int64_t ctas = plan.launch.ctas();
      EXPECT_GE(ctas % 132 == 0 ? 132 : ctas % 132, ctas < 132 ? 110 : 66) << len_q << " of " << group << ": " << ctas;
      EXPECT_GT(plan.workspace.size, 0u);
    }
  const ForwardPlan large = plan_of(forward_of({}));
  EXPECT_EQ(large.splits, 1);
  EXPECT_EQ(large.workspace.size, 0u);
}

TEST(Splits, TakeABoundedWorkspaceOnEveryBoard) {
  for (const int num_sms : {1, 16, 66, 114, 132, 264})
    for (const int64_t heads : {1, 3, 8, 64})
      for (const int64_t dim : {64, 128, 256})
        for (int64_t len_q = 1; len_q <= 8192; len_q *= 2) {
          const Typical t{.dim_qk = dim,
                          .dim_v = dim,
                          .batch = 1,
                          .heads_q = heads,
                          .heads_k = heads,
                          .len_q = len_q,
                          .len_k = 1 << 20};
          EXPECT_LE(plan_of(forward_of(t), {.num_sms = num_sms}).workspace.size, (size_t{64} << 20) + 4096) << len_q;
        }
}

// 704 tiles of 192 queries would take six rounds of 132 CTAs, the last of them a third full; 1,024 of 128 take eight.
TEST(Splits, TilesAreThoseThatFillWholeRounds) {
  const Typical chunk{.batch = 1, .heads_q = 32, .heads_k = 8, .len_q = 4096, .len_k = 32768};
  EXPECT_EQ(plan_of(forward_of(chunk)).tile_q, 128);
  Typical longer = chunk;
  longer.len_q = 8192;  // 11 rounds of 192, 16 of 128
  EXPECT_EQ(plan_of(forward_of(longer)).tile_q, 192);
}

TEST(Splits, NeedAWorkspace) {
  for (const int64_t len_q : {1, 100, 300}) {
    const ForwardPlan plan = plan_of(forward_of(few_queries(len_q)), {.has_workspace = false});
    EXPECT_EQ(plan.splits, 1);
    EXPECT_FALSE(plan.kv);
    EXPECT_EQ(plan.workspace.size, 0u);
    EXPECT_EQ(plan.launch.kernel.as<Sm90ForwardConfig>().work, 0);
  }
}

TEST(FewQueries, RunTheKernelOverACacheOnlyWhereItKnowsTheOptions) {
  const ForwardProblem plain = forward_of(few_queries(4, 4));
  EXPECT_TRUE(plan_of(plain).kv);
  for (const int options : {int{kSoftcap}, int{kAlibi}}) {
    Typical t = few_queries(4, 4);
    t.options = options;
    EXPECT_TRUE(plan_of(forward_of(t)).kv) << options;
  }
  for (const int options : {int{kBias}, int{kMaskTensor}, int{kDropout}}) {
    Typical t = few_queries(4, 4);
    t.options = options;
    EXPECT_FALSE(plan_of(forward_of(t)).kv) << options;
  }
  const auto routed = [&](auto change) {
    ForwardProblem p = plain;
    change(p);
    return plan_of(p).kv.has_value();
  };
  const auto* lengths = reinterpret_cast<const int32_t*>(uintptr_t{1} << 45);
  EXPECT_TRUE(routed([&](ForwardProblem& p) { p.window_right = 0; }));
  EXPECT_TRUE(routed([&](ForwardProblem& p) { p.top_left = true; })) << "where nothing depends on the alignment";
  EXPECT_FALSE(routed([&](ForwardProblem& p) { p.top_left = true, p.window_right = 0; }));
  EXPECT_TRUE(routed([&](ForwardProblem& p) { p.used_k = lengths; }));
  EXPECT_TRUE(routed([&](ForwardProblem& p) { p.used_k = p.used_q = lengths; }));
  EXPECT_FALSE(routed([&](ForwardProblem& p) { p.used_q = lengths; })) << "lengths of keys are nowhere in memory";
  EXPECT_FALSE(routed([&](ForwardProblem& p) { p.o.dtype = DType::f32; })) << "likewise";
  Typical packed = few_queries(4, 4);
  packed.packed = true;
  EXPECT_FALSE(plan_of(forward_of(packed)).kv);
}

TEST(PackedHeads, AreRowsOfATileWhereThatNeedsFewerTiles) {
  const auto packed = [](int64_t len_q, int64_t group, int options = 0) {
    Typical t = few_queries(len_q, group);
    t.options = options;
    return plan_of(forward_of(t)).packed_heads;
  };
  EXPECT_EQ(packed(32, 4), 4);
  EXPECT_EQ(packed(64, 4), 4);
  EXPECT_EQ(packed(128, 4), 1) << "a tile for each head is full";
  EXPECT_EQ(packed(96, 3), 1) << "heads of a query would not fill the rows of a warpgroup";
  EXPECT_EQ(packed(32, 4, kSoftcap), 1);
}

TEST(Lists, AreForSequencesThatMayDifferInLength) {
  Typical t{.causal = true};
  EXPECT_EQ(plan_of(forward_of(t)).list.grid_x, 0u);
  t.packed = true;
  const ForwardPlan plan = plan_of(forward_of(t));
  EXPECT_EQ(plan.list.grid_x, 1u);
  EXPECT_TRUE(lists_tiles(plan.launch.kernel.as<Sm90ForwardConfig>()));
  EXPECT_LE(plan.workspace.size, 4096u);
  t.batch = 1;
  EXPECT_EQ(plan_of(forward_of(t)).list.grid_x, 0u);
}

// A CTA with more warpgroups would leave most of them without rows. Keys beyond the sequence take as much time as its
// own.
TEST(ShortSequences, ShareAnSm) {
  struct Tiles {
    int tile_q, tile_k, ctas_per_sm;
    bool operator==(const Tiles&) const = default;
  };
  const auto tiles = [](const Typical& t, int num_sms = 132) {
    const ForwardPlan plan = plan_of(forward_of(t), {.num_sms = num_sms});
    EXPECT_LE(grid_of(plan.launch, num_sms), static_cast<uint32_t>(num_sms * plan.launch.ctas_per_sm));
    const auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
    EXPECT_EQ(has_one_key_tile(c), plan.launch.ctas_per_sm > 1 && t.len_k <= c.tile_k);
    return Tiles{plan.tile_q, plan.tile_k, plan.launch.ctas_per_sm};
  };
  const auto sequences = [](int64_t len_q, int64_t len_k, int64_t dim = 64, int options = 0) {
    return Typical{.dim_qk = dim, .dim_v = dim, .options = options, .batch = 64, .len_q = len_q, .len_k = len_k};
  };
  EXPECT_EQ(tiles(sequences(49, 49)), Tiles(64, 64, 4));
  EXPECT_EQ(tiles(sequences(49, 49), 1024), Tiles(256, 64, 1)) << "one tile per SM";
  EXPECT_EQ(tiles(sequences(77, 77)), Tiles(64, 80, 3));
  EXPECT_EQ(tiles(sequences(77, 77, 64, kSoftcap)), Tiles(64, 80, 3));
  EXPECT_EQ(tiles(sequences(4096, 77)), Tiles(256, 64, 1)) << "many queries";
  EXPECT_EQ(tiles(sequences(128, 128)), Tiles(128, 128, 2));
  EXPECT_EQ(tiles(sequences(128, 129)), Tiles(64, 64, 3));
  EXPECT_EQ(tiles(sequences(197, 197)), Tiles(256, 64, 1)) << "all warpgroups have rows";
  EXPECT_EQ(tiles(sequences(100, 512)), Tiles(256, 64, 1)) << "many keys";
  EXPECT_EQ(tiles(sequences(49, 49, 128)), Tiles(64, 64, 2));
  EXPECT_EQ(tiles(sequences(128, 128, 128)), Tiles(128, 128, 1)) << "two warpgroups, as two CTAs would have";
  EXPECT_EQ(tiles(sequences(128, 130, 128)), Tiles(128, 128, 1));
  EXPECT_EQ(tiles(sequences(64, 64, 32, kBias)), Tiles(64, 64, 3)) << "tiles of the bias take shared memory";
  EXPECT_EQ(tiles(sequences(128, 128, 64, kBias)), Tiles(64, 64, 3));
  EXPECT_EQ(tiles(sequences(64, 64, 64, kMaskTensor)), Tiles(64, 64, 3)) << "the producer takes registers";
}

// Every work item has one CTA, whatever the numbers of splits, packed heads and CTAs.
TEST(Splits, AreDealtOutOnce) {
  for (const bool causal : {false, true})
    for (const int64_t splits : {1, 3, 16})
      for (const int64_t packed : {1, 4})
        for (const unsigned ctas : {1u, 7u, 132u}) {
          Typical t = few_queries(300, 4);
          t.causal = causal;
          const TileOrder order = tile_order(forward_of(t), 128, ctas, splits, packed);
          std::set<std::pair<unsigned, unsigned>> seen;
          for (unsigned round = 0; round < order.rounds; ++round)
            for (unsigned cta = 0; cta < ctas; ++cta) {
              const TileCoord tile = tile_of(order, cta, ctas, round);
              if (!tile.exists) continue;
              EXPECT_TRUE(seen.insert({tile.head, tile.q_tile}).second);
            }
          EXPECT_EQ(seen.size(), static_cast<size_t>(32 / packed * splits * ((300 * packed + 127) / 128)));
        }
}

}  // namespace
}  // namespace cuflash::cuda
