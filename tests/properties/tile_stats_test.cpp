// Block skipping, tested instead of believed: a call's tile counts against a count over all pairs, and proof that the
// tiles it says it skipped were not read.
#include <algorithm>
#include <variant>

#include "cli/io/traffic.h"
#include "cli/sketch.h"
#include "problem/describe.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

struct Geometry {
  const char* name;
  bool causal = false;
  int64_t left = -1, right = -1;
  Alignment alignment = Alignment::bottom_right;

  bool sees(int64_t i, int64_t j, int64_t len_q, int64_t len_k) const {
    const int64_t at = i + (alignment == Alignment::top_left ? 0 : len_k - len_q);
    return !(causal && j > at) && !(left >= 0 && j < at - left) && !(!causal && right >= 0 && j > at + right);
  }
};

const Geometry kGeometries[] = {
    {.name = "full"},
    {.name = "causal", .causal = true},
    {.name = "causal, top left", .causal = true, .alignment = Alignment::top_left},
    {.name = "window (0, 0)", .left = 0, .right = 0},
    {.name = "window (0, 0), top left", .left = 0, .right = 0, .alignment = Alignment::top_left},
    {.name = "window (70, 10)", .left = 70, .right = 10},
    {.name = "window (63, 64), top left", .left = 63, .right = 64, .alignment = Alignment::top_left},
    {.name = "window (-1, 5)", .right = 5},
    {.name = "window (100, -1)", .left = 100},
    {.name = "causal window 64", .causal = true, .left = 64},
    {.name = "causal window 1, top left", .causal = true, .left = 1, .alignment = Alignment::top_left},
};

void apply(const Geometry& g, Attention& a) {
  a.causal = g.causal, a.window_left = g.left, a.window_right = g.right, a.alignment = g.alignment;
}

// The counts of one head, for the tile shape in `counted`.
void count_head(const Geometry& g, int64_t len_q, int64_t len_k, TileStats& counted) {
  for (int64_t i0 = 0; i0 < len_q; i0 += counted.tile_q)
    for (int64_t j0 = 0; j0 < len_k; j0 += counted.tile_k) {
      const int64_t i1 = std::min(i0 + counted.tile_q, len_q), j1 = std::min(j0 + counted.tile_k, len_k);
      int64_t seen = 0;
      for (int64_t i = i0; i < i1; ++i)
        for (int64_t j = j0; j < j1; ++j) seen += g.sees(i, j, len_q, len_k);
      counted.visited += seen > 0;
      counted.skipped += seen == 0;
      counted.masked += seen > 0 && seen < (i1 - i0) * (j1 - j0);
    }
}

TileStats forward_stats(const Inputs& in) {
  TileStats stats{};
  Buffer o(in.dout.view());
  run_forward(in.attention, {.o = o.view()}, {.tile_stats = &stats});
  return stats;
}

// The requested gradients decide which pass runs first; the counts must not depend on it.
TileStats backward_stats(const Inputs& in, bool keys, bool queries) {
  TileStats stats{};
  const ConstTensor& q = in.attention.q;
  Buffer o(in.dout.view()), dq(in.q.view()), dk(in.k.view()), dv(in.v.view());
  const Tensor lse_layout = q.rank == 3 ? contiguous<void>(nullptr, DType::f32, q.shape[1], q.shape[0])
                                        : contiguous<void>(nullptr, DType::f32, q.shape[0], q.shape[1], q.shape[2]);
  Buffer lse(lse_layout);
  run_forward(in.attention, {.o = o.view(), .lse = lse.view()});
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = in.dout.view()};
  if (keys) tensors.dk = dk.view(), tensors.dv = dv.view();
  if (queries) tensors.dq = dq.view();
  run_backward(in.attention, tensors, {.tile_stats = &stats});
  return stats;
}

void expect_counts(const Geometry& g, const std::vector<std::pair<int64_t, int64_t>>& lengths, int64_t heads,
                   const TileStats& stats) {
  ASSERT_GE(stats.tile_q, 1);
  ASSERT_GE(stats.tile_k, 1);
  TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
  for (auto [len_q, len_k] : lengths) count_head(g, len_q, len_k, counted);
  EXPECT_EQ(stats.visited, heads * counted.visited);
  EXPECT_EQ(stats.masked, heads * counted.masked);
  EXPECT_EQ(stats.skipped, heads * counted.skipped);
}

void expect_counts_of_every_call(const Geometry& g, const std::vector<std::pair<int64_t, int64_t>>& lengths,
                                 const Inputs& in) {
  const int64_t heads = in.attention.q.shape[1];
  expect_counts(g, lengths, heads, forward_stats(in));
  expect_counts(g, lengths, heads, backward_stats(in, true, true));
  expect_counts(g, lengths, heads, backward_stats(in, false, true));
  expect_counts(g, lengths, heads, backward_stats(in, true, false));
}

TEST(TileStats, DenseSequences) {
  for (const Geometry& g : kGeometries)
    for (auto [len_q, len_k] :
         {std::pair<int64_t, int64_t>{300, 300}, {130, 400}, {400, 130}, {1, 500}, {500, 1}, {64, 64}}) {
      SCOPED_TRACE(::testing::Message() << g.name << " Sq=" << len_q << " Sk=" << len_k);
      Inputs in = dense({.heads_q = 2, .heads_k = 1, .len_q = len_q, .len_k = len_k, .dim = 4, .dim_v = 4});
      apply(g, in.attention);
      expect_counts_of_every_call(g, {{len_q, len_k}}, in);
    }
}

TEST(TileStats, PaddedSequencesCountTheirOwnLengths) {
  const std::vector<int32_t> used_q{300, 1, 0, 65}, used_k{20, 400, 64, 0};
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(g.name);
    Inputs in = padded({.batch = 4, .heads_q = 2, .heads_k = 2, .len_q = 300, .len_k = 400, .dim = 4, .dim_v = 4},
                       used_q, used_k);
    apply(g, in.attention);
    expect_counts_of_every_call(g, {{300, 20}, {1, 400}, {0, 64}, {65, 0}}, in);
  }
}

TEST(TileStats, PackedSequencesCountTheirOwnLengths) {
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(g.name);
    Inputs in = packed({.heads_q = 3, .heads_k = 1, .len_q = 300, .len_k = 310, .dim = 4, .dim_v = 4}, {0, 65, 65, 295},
                       {0, 200, 264, 300});
    apply(g, in.attention);
    expect_counts_of_every_call(g, {{65, 200}, {0, 64}, {230, 36}}, in);
  }
}

// A tile is skipped if positions hide all of its pairs or if the mask tensor does.
TEST(TileStats, MaskTensorSkipsTiles) {
  constexpr int64_t kLength = 600;
  Inputs in = dense({.len_q = kLength, .len_k = kLength, .dim = 4, .dim_v = 4});
  in.attention.causal = true;
  std::vector<uint8_t> documents(kLength * kLength);  // each with 150 tokens
  for (int64_t i = 0; i < kLength; ++i)
    for (int64_t j = 0; j < kLength; ++j) documents[static_cast<size_t>(i * kLength + j)] = i / 150 == j / 150;
  in.attention.mask = contiguous(documents.data(), DType::boolean, 1, 1, kLength, kLength);
  const std::vector<TileStats> all = {forward_stats(in), backward_stats(in, true, false),
                                      backward_stats(in, false, true), backward_stats(in, true, true)};
  for (const TileStats& stats : all) {
    TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
    for (int64_t i0 = 0; i0 < kLength; i0 += stats.tile_q)
      for (int64_t j0 = 0; j0 < kLength; j0 += stats.tile_k) {
        const int64_t i1 = std::min(i0 + stats.tile_q, kLength), j1 = std::min(j0 + stats.tile_k, kLength);
        bool causal_any = false, causal_all = true, mask_any = false, mask_all = true;
        for (int64_t i = i0; i < i1; ++i)
          for (int64_t j = j0; j < j1; ++j) {
            causal_any |= j <= i, causal_all &= j <= i;
            mask_any |= i / 150 == j / 150, mask_all &= i / 150 == j / 150;
          }
        counted.visited += causal_any && mask_any, counted.skipped += !(causal_any && mask_any);
        counted.masked += causal_any && mask_any && !(causal_all && mask_all);
      }
    EXPECT_EQ(stats.visited, counted.visited);
    EXPECT_EQ(stats.masked, counted.masked);
    EXPECT_EQ(stats.skipped, counted.skipped);
    EXPECT_GT(stats.skipped, stats.visited);
  }
}

TEST(TileStats, MaskThatHidesEverythingSkipsEverything) {
  Inputs in = dense({.len_q = 200, .len_k = 200, .dim = 4, .dim_v = 4});
  const std::vector<uint8_t> nothing(200, 0);
  in.attention.mask = contiguous(nothing.data(), DType::boolean, 1, 1, 1, 200);
  for (const TileStats& stats : {forward_stats(in), backward_stats(in, true, true)}) EXPECT_EQ(stats.visited, 0);
}

TEST(TileStats, DoNotDependOnTheThreads) {
  Inputs in = dense({.heads_q = 4, .heads_k = 4, .len_q = 300, .len_k = 300, .dim = 32, .dim_v = 32});
  in.attention.causal = true;
  Buffer o(in.dout.view());
  TileStats one{}, four{};
  run_forward(in.attention, {.o = o.view()}, {.num_threads = 1, .tile_stats = &one});
  run_forward(in.attention, {.o = o.view()}, {.num_threads = 4, .tile_stats = &four});
  EXPECT_EQ(one.visited, four.visited);
  EXPECT_EQ(one.masked, four.masked);
  EXPECT_EQ(one.skipped, four.skipped);
}

// A problem for GPUs that is never computed: two query heads that share their keys.
cli::ExplainOptions sketched(const Geometry& g, int64_t len_q, int64_t len_k, DType dtype, int64_t dim, int64_t dim_v) {
  cli::ExplainOptions options;
  options.heads = 2, options.heads_k = 1, options.seq_q = len_q, options.seq_k = len_k;
  options.dtype = dtype, options.dim = dim, options.dim_v = dim_v;
  apply(g, options.attention);
  return options;
}
ForwardProblem forward_problem(const cli::ExplainOptions& options) {
  const cli::Sketch sketch(options);
  Snapshot copies;  // empty: the lengths of a device are not copied
  return describe(detail::to_c(sketch.attention), detail::to_c(sketch.outputs), Memory{0}, copies);
}
BackwardProblem backward_problem(cli::ExplainOptions options) {
  options.backward = true;
  const cli::Sketch sketch(options);
  Snapshot copies;  // empty: the lengths of a device are not copied
  return describe(detail::to_c(sketch.attention), detail::to_c(sketch.tensors), Memory{0}, copies);
}

constexpr std::pair<int64_t, int64_t> kLengths[] = {{300, 300}, {130, 400}, {400, 130}};

// `cuflash io` counts tiles without a call.
TEST(TileStats, CountedWithoutACall) {
  for (const Geometry& g : kGeometries)
    for (auto [len_q, len_k] : {std::pair<int64_t, int64_t>{300, 300}, {130, 400}, {400, 130}, {1, 500}, {500, 1}}) {
      SCOPED_TRACE(::testing::Message() << g.name << " Sq=" << len_q << " Sk=" << len_k);
      Inputs in = dense({.heads_q = 2, .heads_k = 1, .len_q = len_q, .len_k = len_k, .dim = 4, .dim_v = 4});
      apply(g, in.attention);
      const ForwardProblem problem = forward_problem(sketched(g, len_q, len_k, DType::f32, 4, 4));
      const TileStats called = forward_stats(in), same = cli::walked_tiles(problem, called.tile_q, called.tile_k);
      EXPECT_EQ(same.visited, called.visited);
      EXPECT_EQ(same.masked, called.masked);
      EXPECT_EQ(same.skipped, called.skipped);
      for (auto [tile_q, tile_k] : {std::pair<int64_t, int64_t>{64, 64}, {128, 80}, {16, 128}})
        expect_counts(g, {{len_q, len_k}}, 2, cli::walked_tiles(problem, tile_q, tile_k));
    }
}

// The traffic and operations of a plan, counted for every pair of query and key.
struct Counted {
  const Geometry& g;
  const Problem& p;
  int64_t tile_q, tile_k;
  cli::Moved moved{};
  double visited_pairs = 0;

  double row_qk() const { return static_cast<double>(p.dim_qk * size_of(p.dtype)); }
  double row_v() const { return static_cast<double>(p.dim_v * size_of(p.dtype)); }
  bool sees(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t j = j0; j < j1; ++j)
        if (g.sees(i, j, p.len_q, p.len_k)) return true;
    return false;
  }
  // Keys of a tile that one of these queries sees.
  int64_t seen_keys(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    int64_t keys = 0;
    for (int64_t j = j0; j < j1; ++j) keys += sees(i0, i1, j, j + 1);
    return keys;
  }
  int64_t end_q(int64_t i0) const { return std::min(i0 + tile_q, p.len_q); }
  int64_t end_k(int64_t j0) const { return std::min(j0 + tile_k, p.len_k); }

  void forward(bool boxes) {
    for (int64_t i0 = 0; i0 < p.len_q; i0 += tile_q) {
      const auto queries = static_cast<double>(end_q(i0) - i0);
      moved.read += queries * row_qk(), moved.written += queries * row_v();
      for (int64_t j0 = 0; j0 < p.len_k; j0 += tile_k) {
        if (!sees(i0, end_q(i0), j0, end_k(j0))) continue;
        const int64_t keys = boxes ? end_k(j0) - j0 : seen_keys(i0, end_q(i0), j0, end_k(j0));
        moved.read += static_cast<double>(keys) * (row_qk() + row_v());
        visited_pairs += queries * static_cast<double>(end_k(j0) - j0);
      }
    }
  }
  // stats: bytes that belong to 64 queries.
  void dq_alone(double stats) {
    for (int64_t i0 = 0; i0 < p.len_q; i0 += tile_q) {
      const auto queries = static_cast<double>(end_q(i0) - i0);
      moved.written += queries * row_qk();
      int64_t keys = 0;
      for (int64_t j0 = 0; j0 < p.len_k; j0 += tile_k)
        if (sees(i0, end_q(i0), j0, end_k(j0))) keys += end_k(j0) - j0;
      if (keys == 0) continue;
      moved.read += (queries + static_cast<double>(keys)) * (row_qk() + row_v());
      moved.read += static_cast<double>((end_q(i0) - i0 + 63) / 64) * stats;
    }
  }
  // stats, sums: bytes that belong to a tile of queries; without sums, dQ is stored once.
  void backward(double stats, double sums, bool boxes) {
    for (int64_t i0 = 0; i0 < p.len_q; i0 += tile_q) {
      const auto queries = static_cast<double>(end_q(i0) - i0);
      moved.read += 2 * (queries * (2 * row_v() + 4)), moved.written += 2 * (stats + sums + queries * row_qk());
    }
    for (int64_t j0 = 0; j0 < p.len_k; j0 += tile_k) {
      moved.written += static_cast<double>(end_k(j0) - j0) * (row_qk() + row_v());
      bool any = false;
      for (int64_t i0 = 0; i0 < p.len_q; i0 += tile_q) {
        if (!sees(i0, end_q(i0), j0, end_k(j0))) continue;
        any = true;
        moved.read += 2 * (static_cast<double>(end_q(i0) - i0) * (row_qk() + row_v()) + stats);
        moved.added += 2 * sums;
      }
      const int64_t keys = boxes ? end_k(j0) - j0 : seen_keys(0, p.len_q, j0, end_k(j0));
      if (any) moved.read += static_cast<double>(keys) * (row_qk() + row_v());
    }
  }
};

// A separate kernel for dQ, after the one that prepares.
TEST(Traffic, DqAloneIsWhatTheTilesLoadAndStore) {
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  for (const Geometry& g : kGeometries)
    for (auto [len_q, len_k] : kLengths) {
      SCOPED_TRACE(::testing::Message() << g.name << " Sq=" << len_q << " Sk=" << len_k);
      BackwardProblem problem = backward_problem(sketched(g, len_q, len_k, DType::f16, 64, 32));
      problem.dk = {}, problem.dv = {};
      const cuda::BackwardPlan plan =
          cuda::plan_backward(problem, arch, cuda::Reproducible::no, cuda::KernelPreference::best);
      ASSERT_EQ(plan.main.grid_x, 0u);
      Counted counted{g, problem, plan.dq_tile_q, plan.dq_tile_k};
      const double stats = (2 * 64 + 4) * 4;
      counted.dq_alone(stats);
      const double tiles = static_cast<double>((len_q + 63) / 64), rows = static_cast<double>(len_q);
      const cli::Moved moved = cli::traffic_of(problem, arch, cuda::KernelPreference::best).walk;
      EXPECT_EQ(moved.read, 2 * (counted.moved.read + rows * (2 * counted.row_v() + 4)));
      EXPECT_EQ(moved.written, 2 * (counted.moved.written + tiles * stats));
      EXPECT_EQ(moved.added, 0);
    }
}

TEST(Traffic, ForwardIsWhatTheTilesLoadAndStore) {
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  for (const Geometry& g : kGeometries)
    for (auto [len_q, len_k] : kLengths)
      for (const cuda::KernelPreference kernels : {cuda::KernelPreference::portable, cuda::KernelPreference::best}) {
        SCOPED_TRACE(::testing::Message() << g.name << " Sq=" << len_q << " Sk=" << len_k);
        const ForwardProblem problem = forward_problem(sketched(g, len_q, len_k, DType::f16, 64, 32));
        const cuda::ForwardPlan plan = cuda::plan_forward(problem, arch, kernels, nullptr, {.has_workspace = false});
        Counted counted{g, problem, plan.tile_q, plan.tile_k};
        counted.forward(plan.launch.kernel.type->takes_tensor_maps);
        const cli::Traffic traffic = cli::traffic_of(problem, arch, kernels);
        EXPECT_EQ(traffic.walk.read, 2 * counted.moved.read);
        EXPECT_EQ(traffic.walk.written, 2 * counted.moved.written);
        double visible = 0;
        for (int64_t i = 0; i < len_q; ++i)
          for (int64_t j = 0; j < len_k; ++j) visible += g.sees(i, j, len_q, len_k);
        constexpr double kOfPair = 2 * 2 * (64 + 32);
        EXPECT_EQ(traffic.visible_flops, kOfPair * visible);
        EXPECT_EQ(traffic.visited_flops, kOfPair * counted.visited_pairs);
        EXPECT_EQ(traffic.dense_flops, kOfPair * static_cast<double>(len_q * len_k));
      }
}

TEST(Traffic, BackwardIsWhatTheTilesLoadAddAndStore) {
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  for (const Geometry& g : kGeometries)
    for (auto [len_q, len_k] : kLengths)
      for (const cuda::KernelPreference kernels : {cuda::KernelPreference::portable, cuda::KernelPreference::best}) {
        SCOPED_TRACE(::testing::Message() << g.name << " Sq=" << len_q << " Sk=" << len_k);
        // So many sequences that dQ has no separate kernel, which plans choose only for a GPU that is not full.
        constexpr int kBatch = 128;
        cli::ExplainOptions options = sketched(g, len_q, len_k, DType::f16, 64, 32);
        options.batch = kBatch;
        const BackwardProblem problem = backward_problem(options);
        const cuda::BackwardPlan plan = cuda::plan_backward(problem, arch, cuda::Reproducible::no, kernels);
        Counted counted{g, problem, plan.tile_q, plan.tile_k};
        const bool stores_dq = plan.finish.grid_x == 0;
        const double sums = stores_dq ? 0 : plan.tile_q * 64 * 4;
        counted.backward((2 * plan.tile_q + 4) * 4, sums, plan.main.kernel.type->takes_tensor_maps);
        // Kept sums are written for every key tile that sees a query tile but the last, and read for every one but the
        // first.
        double kept = 0;
        if (plan.workspace.kept_dq != 0) {
          const double tile = plan.workspace.dq_rows * 64 * 4;
          Counted visits{g, problem, plan.tile_q, plan.tile_k};
          visits.backward(0, tile, true);
          kept = visits.moved.added - 2 * static_cast<double>((len_q + 63) / 64) * tile;
        }
        // Sums of dQ are read in blocks of 16 rows.
        const double rows_read = stores_dq ? 0 : static_cast<double>((len_q + 15) / 16 * 16);
        const cli::Moved moved = cli::traffic_of(problem, arch, kernels).walk;
        EXPECT_EQ(moved.read, kBatch * (counted.moved.read + 2 * rows_read * 64 * 4 + kept));
        EXPECT_EQ(moved.written, kBatch * (counted.moved.written + kept));
        EXPECT_EQ(moved.added, kBatch * counted.moved.added);
      }
}

// One head of 128 queries and keys in bf16 at a head size of 64, by hand.
TEST(Traffic, OfOneHeadIsThatOnPaper) {
  cli::ExplainOptions options = sketched(kGeometries[0], 128, 128, DType::bf16, 64, 64);
  options.heads = 1;
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  constexpr double kRows = 128 * 64 * 2, kMatrix = 128 * 128 * 2, kState = 128 * 4;
  const cli::Traffic forward = cli::traffic_of(forward_problem(options), arch, cuda::KernelPreference::portable);
  EXPECT_EQ(forward.walk.total(), 4 * kRows);
  EXPECT_EQ(forward.least, 4 * kRows);
  EXPECT_EQ(forward.naive, 4 * kMatrix + 4 * kRows);
  EXPECT_EQ(forward.paper, 2 * kRows + 3 * kRows + 4 * kState);  // all keys are one tile: 227 KiB hold 454 of them
  EXPECT_EQ(forward.dense_flops, 4.0 * 128 * 128 * 64);

  const cli::Traffic backward = cli::traffic_of(backward_problem(options), arch, cuda::KernelPreference::portable);
  ASSERT_EQ(backward.tiles.tile_q, 64);
  ASSERT_EQ(backward.tiles.tile_k, 128);
  constexpr double kStats = 2 * (2 * 64 + 4) * 4, kSums = 128 * 64 * 4;  // two tiles of queries
  // Prepare reads O, dO and LSE; the tile of keys K, V, Q, dO and statistics; finish the sums.
  EXPECT_EQ(backward.walk.read, 2 * kRows + kState + 4 * kRows + kStats + kSums);
  EXPECT_EQ(backward.walk.written, kStats + kSums + 3 * kRows);
  EXPECT_EQ(backward.walk.added, kSums);
  EXPECT_EQ(backward.least, 8 * kRows + kState);
  EXPECT_EQ(backward.naive, 7 * kMatrix + 8 * kRows);
  EXPECT_EQ(backward.paper, 4 * kRows + 5 * kRows + 2 * kState);
  EXPECT_EQ(backward.dense_flops, 10.0 * 128 * 128 * 64);
}

TEST(TileStats, OfNothingAreZero) {
  Inputs in = dense({.batch = 0, .len_q = 64, .len_k = 64});
  const TileStats stats = forward_stats(in);
  EXPECT_EQ(stats.visited + stats.masked + stats.skipped, 0);
}

}  // namespace
}  // namespace cuflash::test
