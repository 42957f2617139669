// The oracle of calls over a cache, on problems that can be worked out by hand.
#include "reference/cache.h"

#include <gtest/gtest.h>

#include <cmath>

#include "check/run/compare.h"
#include "tests/shared/support.h"

namespace cuflash::reference {
namespace {

using test::values_of;
using Values = std::vector<double>;

// Two sequences of one head with two elements; row r of entry e holds 100 e + 10 r and 100 e + 10 r + 1.
struct Small {
  std::vector<double> q{1, 2, 3, 4}, k = std::vector<double>(3 * 4 * 2), v, k_new{-1, -2, -3, -4},
                                     v_new{-5, -6, -7, -8};
  std::vector<double> o = std::vector<double>(4), cos, sin;
  std::vector<int32_t> rows{2, 3}, entries{2, 0}, pad{1, 0}, table{2, 0, 1, 7}, cu{0, 0, 2};
  Attention attention{.q = bhsd(std::as_const(q).data(), 2, 1, 1, 2), .k = {}, .v = {}};
  CacheTensors cache;

  Small() {
    for (size_t n = 0; n < k.size(); ++n) k[n] = static_cast<double>(n / 8 * 100 + n / 2 % 4 * 10 + n % 2);
    v = k;
    cache.k = bhsd(k.data(), 3, 1, 4, 2), cache.v = bhsd(v.data(), 3, 1, 4, 2);
    cache.seqlens = contiguous(std::as_const(rows).data(), 2);
    cache.o = bhsd(o.data(), 2, 1, 1, 2);
  }
  void append() {
    cache.k_new = bhsd(std::as_const(k_new).data(), 2, 1, 1, 2);
    cache.v_new = bhsd(std::as_const(v_new).data(), 2, 1, 1, 2);
  }
  // Position t rotates by t quarters of a circle.
  void quarters() {
    cos = {1, 0, -1, 0, 1}, sin = {0, 1, 0, -1, 0};
    cache.rotary_cos = contiguous(std::as_const(cos).data(), 5, 1);
    cache.rotary_sin = contiguous(std::as_const(sin).data(), 5, 1);
  }
};

// Rotated values are known except for the last digit.
void expect_row(const AppendedRow& row, const Values& expected) {
  ASSERT_EQ(row.least.size(), expected.size());
  for (size_t d = 0; d < expected.size(); ++d) {
    EXPECT_TRUE(row.least[d] <= expected[d] && expected[d] <= row.most[d]) << row.least[d] << " to " << row.most[d];
    EXPECT_LT(row.most[d] - row.least[d], 1e-13);
  }
}

TEST(CacheOracle, KeysOfEntries) {
  Small s;
  const PlainProblem plain(s.attention, s.cache);
  EXPECT_EQ(values_of(plain.attention().k), (Values{0, 1, 10, 11, 0, 0, 100, 101, 110, 111, 120, 121}));
  EXPECT_EQ(values_of(plain.attention().seqlens_k), (Values{2, 3}));
}

TEST(CacheOracle, KeysOfOtherEntriesBehindThePadding) {
  Small s;
  s.cache.batch_idx = contiguous(std::as_const(s.entries).data(), 2);
  s.cache.leftpad = contiguous(std::as_const(s.pad).data(), 2);
  const PlainProblem plain(s.attention, s.cache);
  EXPECT_EQ(values_of(plain.attention().v), (Values{210, 211, 0, 0, 0, 0, 0, 1, 10, 11, 20, 21}));
  EXPECT_EQ(values_of(plain.attention().seqlens_k), (Values{1, 3}));
}

TEST(CacheOracle, KeysOfPages) {
  Small s;
  s.rows = {3, 7};  // pages of 4: {2, 0} and {1, 7}, where page 7 does not exist
  s.attention.window_left = 4, s.attention.causal = true;
  s.table = {2, 0, 1, 0};
  s.cache.block_table = contiguous(std::as_const(s.table).data(), 2, 2);
  const PlainProblem plain(s.attention, s.cache);
  EXPECT_EQ(values_of(plain.attention().k), (Values{200, 201, 210, 211, 220, 221, 0,   0,   0, 0, 0,  0,  0,  0,
                                                    0,   0,   0,   0,   120, 121, 130, 131, 0, 1, 10, 11, 20, 21}));
}

// A page that no query sees is not looked up: its table entry is invalid.
TEST(CacheOracle, PagesThatNoQuerySees) {
  Small s;
  s.rows = {3, 7};
  s.table = {2, 1 << 30, -1, 0};
  s.attention.window_left = 2, s.attention.causal = true;
  s.cache.block_table = contiguous(std::as_const(s.table).data(), 2, 2);
  const PlainProblem plain(s.attention, s.cache);
  EXPECT_EQ(test::part(values_of(plain.attention().k), 14 + 8, 6), (Values{0, 1, 10, 11, 20, 21}));
}

TEST(CacheOracle, NewRowsGoBehindTheOthers) {
  Small s;
  s.append();
  const auto k = appended_k(s.attention, s.cache), v = appended_v(s.attention, s.cache);
  ASSERT_EQ(k.size(), 2u);
  EXPECT_EQ(k[0].offset, 2 * 2);
  EXPECT_EQ(k[1].offset, 8 + 3 * 2);
  EXPECT_EQ(k[0].least, (Values{-1, -2}));
  EXPECT_EQ(k[1].most, (Values{-3, -4}));
  ASSERT_EQ(v.size(), 2u);
  EXPECT_EQ(v[1].offset, 8 + 3 * 2);
  EXPECT_EQ(v[1].least, (Values{-7, -8}));

  s.cache.k_new = thd(std::as_const(s.k_new).data(), 2, 1, 2), s.cache.v_new = {};
  s.cache.cu_seqlens_new = contiguous(std::as_const(s.cu).data(), 3);  // none, and two, which need more room
  s.rows = {2, 2};
  const auto packed = appended_k(s.attention, s.cache);
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_EQ(packed[0].offset, 8 + 2 * 2);
  EXPECT_EQ(packed[1].offset, 8 + 3 * 2);
  EXPECT_EQ(packed[1].least, (Values{-3, -4}));
  EXPECT_TRUE(appended_v(s.attention, s.cache).empty());
}

TEST(CacheOracle, RowsAreRotatedByTheirPositions) {
  Small s;
  s.append(), s.quarters();
  // The new key of the first sequence has position 2, that of the second 3; so have their queries.
  const auto k = appended_k(s.attention, s.cache);
  expect_row(k[0], {1, 2});   // (-1, -2) by half a circle
  expect_row(k[1], {-4, 3});  // (-3, -4) by three quarters
  EXPECT_EQ(values_of(PlainProblem(s.attention, s.cache).attention().q), (Values{-1, -2, 4, -3}));

  s.cache.leftpad = contiguous(std::as_const(s.pad).data(), 2);  // the first sequence begins a row later
  expect_row(appended_k(s.attention, s.cache)[0], {2, -1});
  EXPECT_EQ(values_of(PlainProblem(s.attention, s.cache).attention().q), (Values{-2, 1, 4, -3}));
}

TEST(CacheOracle, PairsAreHalvesOrNeighbours) {
  const std::vector<double> q{1, 2, 3, 4, 5}, cos{1, 0, 0, 1}, sin{0, 1, 1, 0};  // position 1: a quarter, none
  std::vector<double> k(2 * 5);
  const std::vector<int32_t> rows{2};
  const Attention a{.q = bhsd(q.data(), 1, 1, 1, 5), .k = {}, .v = {}};
  CacheTensors c{
      .k = bhsd(k.data(), 1, 1, 2, 5), .v = bhsd(k.data(), 1, 1, 2, 5), .seqlens = contiguous(rows.data(), 1), .o = {}};
  c.rotary_cos = contiguous(cos.data(), 2, 2), c.rotary_sin = contiguous(sin.data(), 2, 2);
  EXPECT_EQ(values_of(PlainProblem(a, c).attention().q), (Values{-3, 2, 1, 4, 5}));
  c.rotary_interleaved = true;
  EXPECT_EQ(values_of(PlainProblem(a, c).attention().q), (Values{-2, 1, 3, 4, 5}));
}

TEST(CacheOracle, OnePositionIsThatOfTheFirstQuery) {
  const std::vector<double> q{1, 2, 1, 2}, cos{1, 0, -1}, sin{0, 1, 0};
  std::vector<double> k(3 * 2);
  const std::vector<int32_t> rows{3};
  const Attention a{.q = bhsd(q.data(), 1, 1, 2, 2), .k = {}, .v = {}};
  CacheTensors c{
      .k = bhsd(k.data(), 1, 1, 3, 2), .v = bhsd(k.data(), 1, 1, 3, 2), .seqlens = contiguous(rows.data(), 1), .o = {}};
  c.rotary_cos = contiguous(cos.data(), 3, 1), c.rotary_sin = contiguous(sin.data(), 3, 1);
  EXPECT_EQ(values_of(PlainProblem(a, c).attention().q), (Values{-2, 1, -1, -2}));
  c.rotary_one_position = true;
  EXPECT_EQ(values_of(PlainProblem(a, c).attention().q), (Values{-2, 1, -2, 1}));
}

// 1 + 2^-8 is the midpoint between two values of bf16; f32 cannot distinguish it from a value 2^-30 above.
TEST(CacheOracle, WhereF32CannotTellBothRoundingsAreLegal) {
  const auto rotated = [](float cos, float sin) {
    std::vector<uint16_t> row{0x3f80, 0x3f80}, cache(2);  // bf16: 1, 1
    const std::vector<int32_t> rows{0};
    const Attention a{.q = bhsd<const void>(row.data(), DType::bf16, 1, 1, 1, 2), .k = {}, .v = {}};
    CacheTensors c{.k = bhsd<void>(cache.data(), DType::bf16, 1, 1, 1, 2),
                   .v = bhsd<void>(cache.data(), DType::bf16, 1, 1, 1, 2),
                   .seqlens = contiguous(rows.data(), 1),
                   .o = {}};
    c.k_new = a.q;
    c.rotary_cos = contiguous<const float>(&cos, 1, 1), c.rotary_sin = contiguous<const float>(&sin, 1, 1);
    return appended_k(a, c).at(0);
  };
  const AppendedRow near_tie = rotated(1 + 0x1p-8f, -0x1p-30f);
  EXPECT_EQ(near_tie.least[0], 1);
  EXPECT_EQ(near_tie.most[0], 1 + 0x1p-7);
  const AppendedRow clear = rotated(1 + 0x1p-8f, -0x1p-12f);
  EXPECT_EQ(clear.least[0], 1 + 0x1p-7);
  EXPECT_EQ(clear.most[0], 1 + 0x1p-7);
  EXPECT_EQ(clear.least[1], 1);
}

// Queries in f64, where any rounding is legal, move results by almost nothing; queries in bf16 whose rounding is
// unambiguous do not move them at all.
TEST(CacheOracle, NoiseOfRotatedQueries) {
  Small s;
  s.quarters();
  const Forward exact = PlainProblem(s.attention, s.cache).rotary_noise();
  for (const double x : exact.o) EXPECT_LT(x, 1e-12);
  EXPECT_EQ(exact.o.size(), 4u);
  EXPECT_EQ(exact.lse.size(), 2u);
  s.cache.rotary_cos = s.cache.rotary_sin = {};
  for (const double x : PlainProblem(s.attention, s.cache).rotary_noise().o) EXPECT_EQ(x, 0);
}

// A rotated element that is 1 or 1 + 2^-7 makes the score of a large key -16 or 0, which is -0.5 or 0 after the cap.
// The slope of the cap at -16 does not show this difference.
TEST(CacheOracle, NoiseOfARotatedQueryReachesAcrossACap) {
  const std::vector<uint16_t> q{0x3f80, 0, 0x3f80, 0};                          // bf16: 1, 0, 1, 0
  std::vector<uint16_t> k{0x4500, 0, 0xc501, 0, 0, 0, 0, 0}, v(8), cache_o(4);  // 2048, 0, -2064, 0, and zeros
  const std::vector<int32_t> rows{2};
  const std::vector<float> cos{1, 1 + 0x1p-8f}, sin{0, 0};  // of positions 0 and 1; the query is at 1
  Attention a{.q = bhsd<const void>(q.data(), DType::bf16, 1, 1, 1, 4), .k = {}, .v = {}, .scale = 1};
  a.softcap = 0.5;
  CacheTensors c{.k = bhsd<void>(k.data(), DType::bf16, 1, 1, 2, 4),
                 .v = bhsd<void>(v.data(), DType::bf16, 1, 1, 2, 4),
                 .seqlens = contiguous(rows.data(), 1),
                 .o = bhsd<void>(cache_o.data(), DType::bf16, 1, 1, 1, 4)};
  c.rotary_cos = contiguous(cos.data(), 2, 1), c.rotary_sin = contiguous(sin.data(), 2, 1);
  const PlainProblem plain(a, c);
  EXPECT_EQ(values_of(plain.attention().q), (Values{1, 0, 1, 0}));
  EXPECT_NEAR(oracle_forward(plain.attention()).lse.at(0), std::log(1 + std::exp(-0.5)), 1e-12);
  const double other = std::log(2.0) - std::log(1 + std::exp(-0.5));
  EXPECT_GE(plain.rotary_noise().lse.at(0), other);
  EXPECT_LT(plain.rotary_noise().lse.at(0), 2 * other);
}

}  // namespace
}  // namespace cuflash::reference
