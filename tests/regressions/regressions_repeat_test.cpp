// Same problem, same bits: repeated calls, thread counts, the rest of the batch; and dropout as a pure function.
#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

TEST(Determinism, RepeatedCallsGiveTheSameBits) {
  Inputs in = dense({.batch = 2, .heads_q = 6, .heads_k = 2, .len_q = 197, .len_k = 197, .dim = 32, .dim_v = 32});
  Buffer bias(contiguous<void>(nullptr, DType::f32, 1, 6, 1, 197));
  fill_normal(bias.view(), 3);
  in.attention.bias = bias.view();
  in.attention.dropout_p = 0.1;
  const Results first = run(in, {.execution = {.deterministic = true}});
  const int calls = kSanitized ? 4 : 30;
  for (int n = 0; n < calls; ++n) ASSERT_TRUE(same_bits(run(in, {.execution = {.deterministic = n % 2 == 0}}), first));
}

TEST(Determinism, EveryThreadCountGivesTheSameBits) {
  for (int64_t length : {32, 33, 300}) {
    Inputs in = dense({.len_q = length, .len_k = length, .dim = 64, .dim_v = 64});
    const Results one = expect_matches_oracle(in, {.execution = {.num_threads = 1}});
    for (int32_t threads : {2, 3, 4, 16, 0}) {
      const Call call{.execution = {.num_threads = threads}};
      EXPECT_TRUE(same_bits(run(in, call), one)) << "S=" << length << " threads=" << threads;
    }
  }
}

Attention batch_entry(const Attention& all, int64_t b) {
  Attention one = all;
  for (ConstTensor* t : {&one.q, &one.k, &one.v}) *t = narrow(*t, 0, b, 1);
  return one;
}

void expect_same_alone(const Inputs& in, const Results& all, int64_t b) {
  const Results one = run(batch_entry(in.attention, b), narrow(in.dout.view(), 0, b, 1));
  const auto expect_same = [&](const std::vector<double>& alone, const std::vector<double>& batched) {
    const auto count = static_cast<int64_t>(alone.size());
    EXPECT_TRUE(same_bits(alone, part(batched, b * count, count)));
  };
  expect_same(one.o, all.o), expect_same(one.lse, all.lse);
  expect_same(one.dq, all.dq), expect_same(one.dk, all.dk), expect_same(one.dv, all.dv);
}

// Each split is a task if an entry is alone; with so many entries, one task takes all splits of its heads.
TEST(BatchInvariance, RangesOfKeysAddUpAlike) {
  Inputs in = dense({.batch = 40, .heads_q = 2, .heads_k = 1, .len_q = 20, .len_k = 400, .dim = 8, .dim_v = 8});
  const Results all = run(in);
  for (int64_t b : {0, 39}) {
    SCOPED_TRACE(b);
    expect_same_alone(in, all, b);
  }
}

TEST(BatchInvariance, EntryAloneGivesTheBitsItHasInTheBatch) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t len_q : {1, 2000}) {
      Inputs in = dense({.batch = 3,
                         .heads_q = 2,
                         .heads_k = 1,
                         .len_q = len_q,
                         .len_k = 1000,
                         .dim = 16,
                         .dim_v = 16,
                         .dtype = dtype});
      in.attention.causal = true;
      const Results all = run(in);
      for (int64_t b = 0; b < 3; ++b) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " Sq=" << len_q << " b=" << b);
        expect_same_alone(in, all, b);
      }
    }
}

// The output with V = 1 is P through dropout: an element is 0 exactly where its pair was dropped.
Inputs dropout_probe(int64_t len_q, int64_t len_k, DType dtype) {
  Inputs in =
      dense({.batch = 2, .heads_q = 2, .heads_k = 1, .len_q = len_q, .len_k = len_k, .dim_v = len_k, .dtype = dtype});
  fill(in.v.view(), 0);
  for (int64_t j = 0; j < len_k; ++j) fill(narrow(narrow(in.v.view(), 2, j, 1), 3, j, 1), 1);
  in.attention.dropout_p = 0.3;
  in.attention.dropout_seed = 0x123456789abcdef0;
  in.attention.dropout_offset = 5;
  return in;
}

// Kept pairs among the first 20 queries and 30 keys of every head.
std::vector<bool> kept_pairs(const Inputs& in, const Call& call = {}) {
  const int64_t len_q = in.attention.q.shape[2], len_k = in.attention.k.shape[2];
  const Results r = run(in, call);
  std::vector<bool> kept;
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t i = 0; i < 20; ++i)
      for (int64_t j = 0; j < 30; ++j) kept.push_back(r.o[static_cast<size_t>((head * len_q + i) * len_k + j)] != 0);
  return kept;
}

TEST(Dropout, DecisionsDependOnThePairAlone) {
  const auto expected = kept_pairs(dropout_probe(20, 30, DType::f32));
  for (DType dtype : kFloatTypes) EXPECT_EQ(kept_pairs(dropout_probe(20, 30, dtype)), expected) << name_of(dtype);
  for (int32_t threads : {1, 2, 4}) {
    const Call call{.execution = {.num_threads = threads}};
    EXPECT_EQ(kept_pairs(dropout_probe(130, 150, DType::f32), call), expected) << threads << " threads";
  }
}

TEST(Dropout, OtherSeedsAndOffsetsGiveOtherDecisions) {
  Inputs in = dropout_probe(20, 30, DType::f32);
  const auto first = kept_pairs(in);
  const auto differing = [&] {
    const auto now = kept_pairs(in);
    int count = 0;
    for (size_t n = 0; n < now.size(); ++n) count += now[n] != first[n];
    return count;
  };
  // 2 * 0.3 * 0.7 of 2400 pairs differ by chance: 1008, with a deviation of 24.
  in.attention.dropout_offset = 6;
  EXPECT_NEAR(differing(), 1008, 150);
  in.attention.dropout_offset = 5 + (uint64_t{1} << 32);
  EXPECT_NEAR(differing(), 1008, 150);
  in.attention.dropout_offset = 5, in.attention.dropout_seed += uint64_t{1} << 32;
  EXPECT_NEAR(differing(), 1008, 150);
}

TEST(Dropout, KeepsTheRightShareAndRescalesIt) {
  Inputs in = dropout_probe(130, 150, DType::f32);
  fill(in.q.view(), 0);
  const Results r = expect_matches_oracle(in);
  double kept = 0;
  for (double value : r.o) {
    if (value == 0) continue;
    ++kept;
    ASSERT_NEAR(value, 1 / 150.0 / 0.7, 1e-7);
  }
  EXPECT_NEAR(kept / static_cast<double>(r.o.size()), 0.7, 0.01);
  EXPECT_NEAR(r.lse[0], std::log(150.0), 1e-5);  // without dropout
}

TEST(Dropout, BackwardUsesTheDecisionsOfForward) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = packed({.heads_q = 4, .heads_k = 2, .len_q = 150, .len_k = 170, .dim = 16, .dim_v = 16, .dtype = dtype},
                       {0, 20, 150}, {0, 100, 170});
    in.attention.causal = true;
    in.attention.dropout_p = 0.25;
    in.attention.dropout_seed = 42;
    expect_matches_oracle(in);
  }
}

TEST(Dropout, OfZeroIsNoDropout) {
  Inputs in = dropout_probe(40, 70, DType::f32);
  in.attention.dropout_p = 0;
  const Results zero = expect_matches_oracle(in);
  in.attention.dropout_seed = in.attention.dropout_offset = 0;
  EXPECT_TRUE(same_bits(run(in), zero));
  in.attention.dropout_p = 1e-16;
  expect_matches_oracle(in);
}

TEST(Dropout, AlmostOneStaysFinite) {
  for (double p : {0.999, 0.999999, std::nextafter(1.0, 0.0)}) {
    SCOPED_TRACE(p);
    Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = 100, .len_k = 200, .dtype = DType::f64});
    in.attention.dropout_p = p;
    const Results r = expect_matches_oracle(in);
    for (const auto* values : {&r.o, &r.lse, &r.dq, &r.dk, &r.dv})
      for (double value : *values) ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace cuflash::test
