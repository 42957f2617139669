// Block skipping, tested instead of believed: a call's tile counts against a count over all pairs, and proof that the
// tiles it says it skipped were not read.
#include <algorithm>

#include "tests/support.h"

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

// Gradients asked for decide which pass runs first; the counts must not depend on it.
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

TEST(TileStats, MaskTensorDoesNotChangeThem) {
  Inputs in = dense({.len_q = 200, .len_k = 200, .dim = 4, .dim_v = 4});
  const std::vector<uint8_t> nothing(200, 0);
  in.attention.causal = true;
  in.attention.mask = contiguous(nothing.data(), DType::boolean, 1, 1, 1, 200);
  expect_counts_of_every_call({.name = "causal", .causal = true}, {{200, 200}}, in);
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

TEST(TileStats, OfNothingAreZero) {
  Inputs in = dense({.batch = 0, .len_q = 64, .len_k = 64});
  const TileStats stats = forward_stats(in);
  EXPECT_EQ(stats.visited + stats.masked + stats.skipped, 0);
}

}  // namespace
}  // namespace cuflash::test
