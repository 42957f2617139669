#include "check/run/sweep.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "check/memory/memory_use.h"
#include "check/run/run.h"
#include "property.h"
#include "tests/shared/device.h"
#include "tests/shared/support.h"

namespace cuflash::check {
namespace {

using test::scaled;
using test::test_seed;

TEST(Sweep, FindsNothing) {
  const auto count = static_cast<uint64_t>(scaled(500));
  uint64_t reported = 0;
  const SweepResult result = sweep(
      test_seed(), 0, count, [&](uint64_t done, uint64_t) { return reported = done, true; }, 0, test::test_limits());
  EXPECT_EQ(result.cases, count);
  EXPECT_EQ(reported, count);
  EXPECT_EQ(result.failed, 0u);
  for (const SweepFailure& f : result.failures)
    ADD_FAILURE() << f.failure << "\n  " << f.reproduction << "\n  " << f.description;
}

// Plain cases are shorter on the CPU, which has no special kernels for them and would mostly wait for the oracle.
Limits limits_of_plain_cases() { return test::on_cuda() ? test::test_limits() : test::test_limits(20'000); }

TEST(Sweep, FindsNothingInPlainCases) {
  Limits limits = limits_of_plain_cases();
  limits.plain = true;
  const auto count = static_cast<uint64_t>(scaled(60));
  const SweepResult result = sweep(test_seed(), 0, count, {}, 0, limits);
  EXPECT_EQ(result.cases, count);
  EXPECT_EQ(result.failed, 0u);
  for (const SweepFailure& f : result.failures) {
    ADD_FAILURE() << f.failure << "\n  " << f.reproduction << "\n  " << f.description;
    EXPECT_NE(f.reproduction.find(" --plain"), std::string::npos);
  }
}

TEST(Sweep, FindsNothingInPlainCasesWithOptions) {
  Limits limits = limits_of_plain_cases();
  limits.options = true;
  const auto count = static_cast<uint64_t>(scaled(60));
  const SweepResult result = sweep(test_seed(), 0, count, {}, 0, limits);
  EXPECT_EQ(result.cases, count);
  for (const SweepFailure& f : result.failures) {
    ADD_FAILURE() << f.failure << "\n  " << f.reproduction << "\n  " << f.description;
    EXPECT_NE(f.reproduction.find(" --options"), std::string::npos);
  }
}

TEST(Sweep, StopsWhenTheCallbackAsks) {
  constexpr unsigned kWorkers = 3;
  const auto stop = [](uint64_t done, uint64_t) { return done < 4; };
  const SweepResult result = sweep(test_seed(), 0, 1000, stop, kWorkers, test::test_limits());
  EXPECT_GE(result.cases, 4u);
  EXPECT_LT(result.cases, 4 + kWorkers);
}

// Numbers beyond the last one are not those of the first cases.
TEST(Sweep, EndsAtTheLastCaseOfAll) {
  const SweepResult result = sweep(test_seed(), ~uint64_t{1}, 2, {}, 3, test::test_limits());
  EXPECT_EQ(result.cases, 2u);
}

TEST(MemoryUse, GrowthIsNamed) {
  const MemoryUse before{100, 200};
  EXPECT_EQ(growth_beyond(10, before, {110, 210}), "");
  EXPECT_EQ(growth_beyond(10, before, {50, 0}), "");
  EXPECT_NE(growth_beyond(10, before, {111, 200}).find("resident memory grew by 11 bytes"), std::string::npos);
  EXPECT_NE(growth_beyond(10, before, {100, 211}).find("device memory grew by 11 bytes"), std::string::npos);
}

#if defined(__GLIBC__)
// glibc's arena of each thread would keep the small blocks: some because a block of 24 MiB was freed, others because they are
// below one that is still in use.
TEST(MemoryUse, FreedMemoryIsReturned) {
  constexpr size_t kThreads = 4, kBlocks = 160, kSmall = size_t{100} << 10, kLarge = size_t{24} << 20;
  if (test::kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  using Block = std::vector<char>;
  return_freed_memory();
  const int64_t before = memory_use(Device::cpu).host;
  const auto use = [&](Block& kept) {
    Block(kLarge, 'x').clear();
    std::vector<Block> below, above;
    for (size_t n = 0; n < kBlocks; ++n) below.emplace_back(kSmall, 'x');
    kept.assign(kSmall, 'x');
    for (size_t n = 0; n < kBlocks; ++n) above.emplace_back(kSmall, 'x');
  };
  std::vector<Block> kept(kThreads);
  std::vector<std::thread> threads;
  for (Block& block : kept) threads.emplace_back(use, std::ref(block));
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(memory_use(Device::cpu).host - before, static_cast<int64_t>(kBlocks * kSmall));
}
#endif

TEST(Sweep, SeedAndIndexRebuildTheSameCase) {
  for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{77}, uint64_t{1} << 40}) {
    EXPECT_EQ(describe(sweep_case(5, index)), describe(sweep_case(5, index)));
    EXPECT_NE(describe(sweep_case(5, index)), describe(sweep_case(6, index)));
    EXPECT_NE(describe(sweep_case(5, index)), describe(sweep_case(5, index + 1)));
  }
}

TEST(Sweep, CasesDoNotRepeat) {
  std::set<std::string> seen;
  for (uint64_t index = 0; index < 2000; ++index) seen.insert(describe(sweep_case(1, index)));
  EXPECT_EQ(seen.size(), 2000u);
}

// Failures shrink to an empty or all-zero sequence, so that must be a valid case.
TEST(Sweep, TheSimplestCaseRuns) {
  Choices nothing({});
  EXPECT_EQ(run_case(draw_case(nothing, test::test_limits())), "");
}

// The cases must cover every option, alone and with every other.
TEST(Sweep, EveryOptionMeetsEveryOther) {
  const auto traits = [](const Case& c) {
    return std::vector<bool>{
        c.mode == Mode::padded, c.mode == Mode::packed, c.causal,           c.alignment == Alignment::top_left,
        c.window_left >= 0,     c.window_right >= 0,    c.softcap > 0,      c.scale.has_value(),
        c.alibi_rank > 0,       c.bias.has_value(),     c.mask.has_value(), c.sink,
        c.dropout_p > 0,        c.heads_q > c.heads_k,  c.dim != c.dim_v,   c.dtype == DType::f16,
        c.dtype == DType::bf16, c.dtype == DType::f64,  c.dlse_given,       c.garbage};
  };
  const size_t count = traits(Case{}).size();
  std::vector<int> met(count * count);
  for (uint64_t index = 0; index < 5000; ++index) {
    const std::vector<bool> of_case = traits(sweep_case(1, index));
    for (size_t x = 0; x < count; ++x)
      for (size_t y = 0; y < count; ++y) met[x * count + y] += of_case[x] && of_case[y];
  }
  const auto exclude_each_other = [](size_t x, size_t y) {
    const auto among = [&](size_t first, size_t last) { return x >= first && x <= last && y >= first && y <= last; };
    return x != y && (among(0, 1) || among(15, 17));  // modes, element types
  };
  for (size_t x = 0; x < count; ++x)
    for (size_t y = 0; y < count; ++y)
      EXPECT_TRUE(exclude_each_other(x, y) || met[x * count + y] > 10) << "traits " << x << " and " << y;
}

// Cases of one set have the same choices of what kernels are compiled for, and all sets together have all of them.
TEST(Sweep, KernelSetsAreKeptAndCoverEveryChoice) {
  constexpr uint64_t kSets = 31;
  std::set<int64_t> sizes;
  std::set<DType> types;
  std::set<std::vector<bool>> options;
  Limits limits{.device = Device::cuda, .options = true};
  add_kernel_sets(limits, 1, kSets);
  for (uint64_t index = 0; index < 10 * kSets; ++index) {
    const KernelSet& set = limits.kernel_sets[index % kSets];
    const Case c = sweep_case(1, index, limits);
    const std::vector<bool> has{c.softcap > 0, c.alibi_rank > 0, c.bias.has_value(), c.mask.has_value(),
                                c.dropout_p > 0};
    ASSERT_EQ(has, (std::vector<bool>{set.options.softcap, set.options.alibi, set.options.bias, set.options.mask,
                                      set.options.dropout}))
        << describe(c);
    ASSERT_TRUE(c.dtype == set.dtype && c.deterministic == set.deterministic) << describe(c);
    ASSERT_TRUE(c.dim >= set.head_sizes.dim.smallest && c.dim <= set.head_sizes.dim.largest) << describe(c);
    sizes.insert(set.head_sizes.dim.largest), types.insert(c.dtype), options.insert(has);
  }
  EXPECT_EQ(sizes, (std::set<int64_t>{32, 64, 96, 128, 192, 256}));
  EXPECT_EQ(types, (std::set<DType>{DType::f16, DType::bf16}));
  EXPECT_EQ(options.size(), kSets);
  EXPECT_EQ(sweep_flags(limits), " --options --device cuda --kernel-sets 31");

  Limits any{.device = Device::cuda};
  add_kernel_sets(any, 1, kSets);
  std::set<DType> every;
  std::set<RowAlignment> rows;
  for (const KernelSet& set : any.kernel_sets) every.insert(set.dtype), rows.insert(set.rows);
  EXPECT_EQ(every.size(), 4u);
  EXPECT_EQ(rows.size(), 3u);
}

TEST(Sweep, CoverageCountsWhatCasesHave) {
  Coverage coverage;
  Case c;
  c.dtype = DType::bf16;
  for (const bool causal : {false, true}) c.causal = causal, c.softcap = 1, coverage.add(c);
  Coverage both;
  both.add(coverage), both.add(coverage);
  EXPECT_NE(both.text().find("bf16 4, bias 0, causal 2"), std::string::npos) << both.text();
  EXPECT_NE(both.text().find("softcap 4"), std::string::npos) << both.text();
}

// A kernel that wrote all packed sequences to the rows of the first went unnoticed: whole tiles after it were too rare.
TEST(Sweep, PlainCasesHaveWholeTilesBehindTheFirstSequence) {
  constexpr int64_t kTile = 64;
  int packed = 0, padded = 0, dense = 0, fused = 0;
  for (uint64_t index = 0; index < 2000; ++index) {
    const Case c = sweep_case(1, index, {.plain = true});
    ASSERT_TRUE(c.dim % 8 == 0 && c.dim_v % 8 == 0 && c.dtype != DType::f32 && c.o_dtype == c.dtype) << describe(c);
    ASSERT_TRUE(!c.bias && !c.mask && c.softcap == 0 && c.dropout_p == 0 && !c.sink && !c.alibi_rank) << describe(c);
    bool behind = false;
    for (int64_t b = 1; b < c.batch; ++b) behind |= c.length_q(b) >= kTile && c.length_k(b) > 0;
    packed += behind && c.mode == Mode::packed, padded += behind && c.mode == Mode::padded;
    dense += behind && c.mode == Mode::dense, fused += behind && c.fused != Fused::none;
  }
  EXPECT_GT(packed, 100);
  EXPECT_GT(padded, 100);
  EXPECT_GT(dense, 100);
  EXPECT_GT(fused, 20);
}

}  // namespace
}  // namespace cuflash::check
