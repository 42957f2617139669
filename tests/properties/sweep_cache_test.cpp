// Random calls over a KV cache; sweep_test.cpp has those of forward and backward.
#include <gtest/gtest.h>

#include <set>

#include "check/run/cache_run.h"
#include "check/run/sweep.h"
#include "property.h"
#include "tests/shared/device.h"

namespace cuflash::check {
namespace {

using test::scaled;
using test::test_seed;

Limits cache_limits() {
  Limits limits = test::test_limits();
  limits.cache = true;
  return limits;
}

TEST(CacheSweep, FindsNothing) {
  const auto count = static_cast<uint64_t>(scaled(400));
  const SweepResult result = sweep(test_seed(), 0, count, {}, 0, cache_limits());
  EXPECT_EQ(result.cases, count);
  EXPECT_EQ(result.failed, 0u);
  for (const SweepFailure& f : result.failures)
    ADD_FAILURE() << f.failure << "\n  " << f.reproduction << "\n  " << f.description;
}

TEST(CacheSweep, SeedAndIndexRebuildTheSameCase) {
  std::set<std::string> seen;
  for (uint64_t index = 0; index < 500; ++index) {
    const std::string description = describe_sweep_case(5, index, cache_limits());
    EXPECT_EQ(description, describe(sweep_cache_case(5, index, cache_limits())));
    seen.insert(description);
  }
  EXPECT_EQ(seen.size(), 500u);
}

TEST(CacheSweep, TheSimplestCaseRuns) {
  Choices nothing({});
  EXPECT_EQ(run_cache_case(draw_cache_case(nothing, cache_limits())), "");
}

// The calls must cover every option, alone and with every other.
TEST(CacheSweep, EveryOptionMeetsEveryOther) {
  const auto traits = [](const CacheCase& c) {
    const Case& p = c.plain;
    return std::vector<bool>{p.mode == Mode::dense,
                             p.mode == Mode::padded,
                             p.mode == Mode::packed,
                             c.new_rows == NewRows::none,
                             c.new_rows == NewRows::dense,
                             c.new_rows == NewRows::padded,
                             c.new_rows == NewRows::packed,
                             c.rotary == Rotary::halves,
                             c.rotary == Rotary::interleaved,
                             p.dtype == DType::f32,
                             p.dtype == DType::f64,
                             p.dtype == DType::f16,
                             p.dtype == DType::bf16,
                             c.page_size > 0,
                             c.batch_idx,
                             c.one_position,
                             !c.leftpad.empty(),
                             c.shared,
                             c.v_in_k,
                             p.causal,
                             p.window_left >= 0,
                             p.window_right >= 0,
                             p.softcap > 0,
                             p.scale.has_value(),
                             p.alibi_rank > 0,
                             p.sink,
                             p.heads_q > p.heads_k,
                             p.len_q > 16,
                             p.len_k > 256,
                             c.num_splits > 0,
                             c.alone >= 0,
                             p.batch > 1};
  };
  const size_t count = traits(CacheCase{}).size();
  std::vector<int> met(count * count);
  for (uint64_t index = 0; index < 5000; ++index) {
    const std::vector<bool> of_case = traits(sweep_cache_case(1, index));
    for (size_t x = 0; x < count; ++x)
      for (size_t y = 0; y < count; ++y) met[x * count + y] += of_case[x] && of_case[y];
  }
  const auto exclude_each_other = [](size_t x, size_t y) {
    const auto among = [&](size_t first, size_t last) { return x >= first && x <= last && y >= first && y <= last; };
    // Queries, new rows, rotary pairs, element types, where keys lie.
    return x != y && (among(0, 2) || among(3, 6) || among(7, 8) || among(9, 12) || among(13, 14));
  };
  for (size_t x = 0; x < count; ++x)
    for (size_t y = 0; y < count; ++y)
      EXPECT_TRUE(exclude_each_other(x, y) || met[x * count + y] > 5)
          << "traits " << x << " and " << y << " met " << met[x * count + y] << " times";
}

// Tiles of 128 and 256 rows serve calls with many rows, which small random calls rarely have.
TEST(CacheSweep, OnCudaSomeCallsHaveManyTilesOfRows) {
  constexpr int64_t kTile = 128, kTiles = 66;
  int wide = 0, pages = 0, options = 0, append = 0, packed = 0;
  for (uint64_t index = 0; index < 3000; ++index) {
    const CacheCase c = sweep_cache_case(1, index, {.device = Device::cuda});
    const Case& p = c.plain;
    if (p.dtype == DType::f32 || p.dtype == DType::f64 || c.num_splits != 0 || p.dim % 8 != 0 || p.dim_v % 8 != 0)
      continue;
    const int64_t rows = p.len_q * p.heads_q / p.heads_k;
    if (rows <= 64 || p.batch * p.heads_k * ((rows + kTile - 1) / kTile) < kTiles) continue;
    ++wide, pages += c.page_size > 0, options += p.softcap > 0 || p.alibi_rank > 0;
    append += c.new_rows != NewRows::none, packed += p.mode == Mode::packed;
  }
  EXPECT_GT(wide, 60);
  EXPECT_GT(pages, 20);
  EXPECT_GT(options, 10);
  EXPECT_GT(append, 20);
  EXPECT_GT(packed, 10);
}

}  // namespace
}  // namespace cuflash::check
