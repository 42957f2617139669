// Causal and window geometry: alignment, empty rows, windows beyond the sequence, and merging of chunks.
#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

struct Geometry {
  bool causal = false;
  int64_t left = -1, right = -1;
  Alignment alignment = Alignment::bottom_right;
};

void set(Attention& a, const Geometry& g) {
  a.causal = g.causal, a.window_left = g.left, a.window_right = g.right, a.alignment = g.alignment;
}

// Keys query i sees, counted by the sentence of the contract rather than by the oracle's code.
int64_t visible_keys(const Geometry& g, int64_t len_q, int64_t len_k, int64_t i) {
  const int64_t at = i + (g.alignment == Alignment::top_left ? 0 : len_k - len_q);
  int64_t count = 0;
  for (int64_t j = 0; j < len_k; ++j) {
    const bool right_hides = g.causal ? j > at : g.right >= 0 && j - at > g.right;
    const bool left_hides = g.left >= 0 && at - j > g.left;
    count += !right_hides && !left_hides;
  }
  return count;
}

// With q = 0 every visible score is 0, so LSE is the logarithm of the number of visible keys.
void expect_visible_counts(const Geometry& g, int64_t len_q, int64_t len_k) {
  SCOPED_TRACE(::testing::Message() << "Sq=" << len_q << " Sk=" << len_k << " causal=" << g.causal << " window=("
                                    << g.left << "," << g.right
                                    << ") top_left=" << (g.alignment == Alignment::top_left));
  Inputs in = dense({.len_q = len_q, .len_k = len_k});
  set(in.attention, g);
  expect_matches_oracle(in);
  fill(in.q.view(), 0);
  const Results r = run(in);
  for (int64_t i = 0; i < len_q; ++i) {
    const int64_t count = visible_keys(g, len_q, len_k, i);
    const double lse = r.lse[static_cast<size_t>(i)];
    if (count == 0) {
      ASSERT_EQ(lse, -kInf) << "query " << i;
    } else {
      ASSERT_NEAR(std::exp(lse), static_cast<double>(count), 1e-4 * static_cast<double>(count)) << "query " << i;
    }
  }
}

TEST(Causal, BothAlignmentsWithUnequalLengths) {
  for (Alignment alignment : {Alignment::bottom_right, Alignment::top_left})
    for (auto [len_q, len_k] : {std::pair{2, 5}, {5, 2}, {1, 1}, {64, 65}, {65, 64}, {130, 40}, {40, 130}})
      expect_visible_counts({.causal = true, .alignment = alignment}, len_q, len_k);
}

TEST(Causal, SingleQueryAtTheEndSeesEveryKey) {
  for (int64_t len_k : {1, 7, 64, 65, 300}) {
    Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 1, .len_k = len_k, .dim = 16, .dim_v = 16});
    const Results full = expect_matches_oracle(in);
    in.attention.causal = true;
    EXPECT_TRUE(same_bits(expect_matches_oracle(in), full)) << "Sk=" << len_k;
  }
}

TEST(Causal, QueriesBeforeTheFirstKeyGiveExactZeros) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Inputs in = dense({.len_q = 2048, .len_k = 1024, .dim = 16, .dim_v = 16, .dtype = dtype});
    in.attention.causal = true;
    const Results r = expect_matches_oracle(in);
    EXPECT_TRUE(all_equal(part(r.o, 0, 1024 * 16), 0));
    EXPECT_TRUE(all_equal(part(r.lse, 0, 1024), -kInf));
    EXPECT_TRUE(all_equal(part(r.dq, 0, 1024 * 16), 0));
    EXPECT_TRUE(std::isfinite(r.lse[1024]));
  }
}

// Chunk 2 alone leaves the first half of the queries empty: its LSE of -inf must weigh nothing in the merge.
TEST(Causal, ChunksMergedByLseEqualTheWhole) {
  const int64_t length = 400, half = 200, dim = 16;
  Inputs in = dense({.len_q = length, .len_k = length, .dim = dim, .dim_v = dim, .dtype = DType::f64});
  in.attention.causal = true;
  const Results whole = expect_matches_oracle(in);
  const auto chunk = [&](int64_t begin, Alignment alignment) {
    Attention a = in.attention;
    a.k = narrow(a.k, 2, begin, half), a.v = narrow(a.v, 2, begin, half), a.alignment = alignment;
    return run(a, in.dout.view());
  };
  const Results first = chunk(0, Alignment::top_left), second = chunk(half, Alignment::bottom_right);
  EXPECT_TRUE(all_equal(part(second.lse, 0, half), -kInf));
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
    const double lse = std::log(std::exp(first.lse[i]) + std::exp(second.lse[i]));
    ASSERT_NEAR(lse, whole.lse[i], 1e-12);
    const double w1 = std::exp(first.lse[i] - lse), w2 = std::exp(second.lse[i] - lse);
    for (size_t n = i * dim; n < (i + 1) * dim; ++n) ASSERT_NEAR(w1 * first.o[n] + w2 * second.o[n], whole.o[n], 1e-13);
  }
}

TEST(Window, LargerThanTheSequenceChangesNothing) {
  const int64_t length = 333;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Inputs in = dense({.heads_q = 2, .heads_k = 1, .len_q = length, .len_k = length, .dim = 64, .dim_v = 64});
  set(in.attention, {.causal = true});
  const Results causal = expect_matches_oracle(in);
  set(in.attention, {});
  const Results full = expect_matches_oracle(in);
  for (int64_t left : {int64_t{-1}, length - 1, length, length + 1, int64_t{INT32_MAX}, kMax}) {
    SCOPED_TRACE(left);
    set(in.attention, {.left = left, .right = 0});
    EXPECT_TRUE(same_bits(run(in), causal));
    set(in.attention, {.causal = true, .left = left});
    EXPECT_TRUE(same_bits(run(in), causal));
    set(in.attention, {.left = left, .right = left});
    EXPECT_TRUE(same_bits(run(in), full));
  }
}

TEST(Window, CausalSetsTheRightSideAndKeepsTheLeft) {
  Inputs in = dense({.len_q = 100, .len_k = 100});
  set(in.attention, {.left = 9, .right = 0});
  const Results expected = expect_matches_oracle(in);
  for (int64_t right : {-1, 0, 5, 1000}) {
    set(in.attention, {.causal = true, .left = 9, .right = right});
    EXPECT_TRUE(same_bits(run(in), expected)) << "window_right=" << right;
  }
}

TEST(Window, OfWMinusOneHoldsExactlyWTokens) {
  for (int64_t tokens : {1, 2, 16, 63, 64, 65}) expect_visible_counts({.left = tokens - 1, .right = 0}, 150, 150);
}

TEST(Window, UnboundedRightLosesNoKeyWhenQueriesOutnumberKeys) {
  for (int64_t right : {int64_t{-1}, int64_t{INT32_MAX}, std::numeric_limits<int64_t>::max()})
    for (Alignment alignment : {Alignment::bottom_right, Alignment::top_left})
      expect_visible_counts({.right = right, .alignment = alignment}, 140, 70);
}

TEST(Window, RowsWithAnEmptyWindow) {
  for (Alignment alignment : {Alignment::bottom_right, Alignment::top_left})
    for (auto [len_q, len_k] : {std::pair{129, 129}, {129, 16}, {16, 129}, {300, 70}, {70, 300}}) {
      expect_visible_counts({.left = 32, .right = 64, .alignment = alignment}, len_q, len_k);
      expect_visible_counts({.left = 0, .right = 0, .alignment = alignment}, len_q, len_k);
      expect_visible_counts({.right = 7, .alignment = alignment}, len_q, len_k);
      expect_visible_counts({.left = 7, .alignment = alignment}, len_q, len_k);
    }
}

TEST(Window, NegativeSidesOtherThanMinusOneAreRefused) {
  Inputs in = dense({.len_q = 4, .len_k = 4});
  for (int64_t side : {int64_t{-2}, int64_t{-100}, std::numeric_limits<int64_t>::min()}) {
    set(in.attention, {.left = side});
    expect_refused(in.attention, "window_left");
    set(in.attention, {.right = side});
    expect_refused(in.attention, "window_right");
  }
}

// The geometry follows each sequence's own lengths, not those of the tensor.
TEST(Window, FollowsTheLengthsOfEachSequence) {
  Inputs in = padded({.batch = 4, .len_q = 80, .len_k = 150}, {80, 3, 70, 0}, {20, 150, 70, 9});
  for (const Geometry& g : {Geometry{.causal = true}, Geometry{.left = 10, .right = 20},
                            Geometry{.causal = true, .left = 10, .alignment = Alignment::top_left}}) {
    set(in.attention, g);
    expect_matches_oracle(in);
  }
}

}  // namespace
}  // namespace cuflash::test
