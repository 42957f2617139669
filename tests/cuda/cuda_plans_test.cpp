// Plans for a table of problems, compared with tests/cuda/cuda_plans.txt: a change of a plan is seen in a review.
// CUFLASH_UPDATE_PLANS=1 build/release/bin/cuda_plans_test writes the file anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cuda/families/limits.h"
#include "cuda/families/typical.h"
#include "cuda/jit/program.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

std::vector<Typical> problems() {
  std::vector<Typical> all;
  for (const DType type : {DType::bf16, DType::f32, DType::f64})
    for (const int64_t dim : {64, 128, 256}) all.push_back({.dtype = type, .dim_qk = dim, .dim_v = dim});
  for (const int options : {int{kBias}, int{kDropout}, kAllOptions & ~kScaleFirst}) all.push_back({.options = options});
  all.push_back({.options = kScaleFirst});
  all.push_back({.dtype = DType::f16, .causal = true, .heads_k = 2});
  all.push_back({.dim_qk = 192, .dim_v = 128, .sink = true});
  all.push_back({.dim_qk = 1, .dim_v = 7, .aligned = false});
  all.push_back({.dim_qk = 128, .dim_v = 128, .batch = 65536, .len_q = 1, .len_k = 100000});
  all.push_back({.batch = 0});
  all.push_back({.len_q = 0});
  all.push_back({.len_k = 0});
  all.push_back({.dim_qk = 264});
  return all;
}

std::vector<TypicalCache> caches() {
  std::vector<TypicalCache> all;
  for (const DType type : {DType::bf16, DType::f32, DType::f64})
    for (const int64_t dim : {64, 128, 256}) all.push_back({.dtype = type, .dim_qk = dim, .dim_v = dim});
  for (const int64_t batch : {16, 128}) all.push_back({.batch = batch, .page_size = 16, .len_new = 1});
  for (const int64_t room : {64, 1024, 131072}) all.push_back({.room = room});
  all.push_back({.batch = 128, .room = 2048});
  all.push_back({.heads_q = 8, .room = 131072, .window_left = 1023});
  all.push_back({.dtype = DType::f16, .heads_q = 28, .heads_k = 4, .len_q = 4});
  for (const int64_t len_q : {16, 17, 33}) all.push_back({.batch = 16, .len_q = len_q});  // 64 rows and more
  all.push_back({.batch = 4, .len_q = 512, .room = 32768});
  all.push_back({.batch = 4, .len_q = 512, .room = 32768, .num_splits = 8});
  for (const int64_t group : {16, 32, 128})
    all.push_back(
        {.dim_qk = 576, .dim_v = 512, .batch = 2, .heads_q = group, .heads_k = 1, .page_size = 64, .v_in_k = true});
  all.push_back({.dim_qk = 512, .dim_v = 512, .heads_q = 8, .heads_k = 1});
  for (const int options : {int{kSoftcap}, int{kAlibi}, kSoftcap | kAlibi, int{kScaleFirst}})
    all.push_back({.options = options});
  all.push_back({.dim_qk = 1, .dim_v = 7, .aligned = false});
  all.push_back({.batch = 0});
  all.push_back({.len_q = 0});
  all.push_back({.len_q = 0, .len_new = 5});
  all.push_back({.room = 0});
  all.push_back({.dim_qk = 577});
  all.push_back({.room = int64_t{1} << 31});
  all.push_back({.len_q = int64_t{1} << 30});
  all.push_back({.room = 1 << 20, .num_splits = 5000});
  return all;
}

std::string line(const Launch& l) {
  if (l.grid_x == 0) return "";
  return join("  ", name_of(l.kernel), " grid ", l.grid_x, " x ", l.grid_y, l.grid_z == 1 ? "" : join(" x ", l.grid_z),
              " threads ", l.threads, " shared ", l.shared_bytes, "\n");
}

// A refusal is a plan, too.
std::string or_refusal(auto text) {
  try {
    return text();
  } catch (const FlashAttentionError& error) {
    return join("  ", error.what(), "\n");
  }
}

std::string forward_lines(const Typical& t, const Arch& arch, Kernels kernels) {
  return or_refusal([&] {
    const ForwardPlan plan = plan_forward(forward_of(t), arch, kernels);
    const std::string not_sm90 = plan.not_sm90 ? join("  not hopper: ", plan.not_sm90, "\n") : "";
    return not_sm90 + (plan.launch.grid_x == 0 ? std::string("  nothing to do\n") : line(plan.launch));
  });
}

std::string backward_lines(const Typical& t, const Arch& arch, Reproducible reproducible, Kernels kernels) {
  return or_refusal([&] {
    const BackwardPlan plan = plan_backward(backward_of(t), arch, reproducible, kernels);
    std::string text = plan.not_sm90 ? join("  not hopper: ", plan.not_sm90, "\n") : "";
    for (const Launch* l : plan.launches()) text += line(*l);
    return text + join("  workspace ", plan.workspace.size, "\n");
  });
}

std::string cache_lines(const TypicalCache& t, const Arch& arch) {
  return or_refusal([&] {
    const KvPlan plan = plan_kv(cache_of(t), arch, usual_sms(arch), Kernels::best);
    if (plan.launch.grid_x == 0) return std::string("  nothing to do\n");
    return join(line(plan.launch), "  splits ", plan.splits, ", ", plan.eager_splits, " of ", plan.least_tiles,
                " tiles at least, ", plan.short_splits, " short, ", plan.known_splits, " with a known tile, ",
                plan.row_tiles, " tiles of rows, workspace ", plan.workspace.size, "\n");
  });
}

std::string all_plans() {
  std::string text;
  for (const char* name : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
    const Arch arch = arch_named(name);
    for (const Typical& t : problems()) {
      const std::string what = join(name, " ", to_string(forward_of(t)), t.aligned ? "" : " unaligned", "\n");
      text += join("forward ", what, forward_lines(t, arch, Kernels::best));
      if (arch.number() == 90) text += join("portable forward ", what, forward_lines(t, arch, Kernels::portable));
      for (const auto& [word, kernels] : {std::pair{"", Kernels::best}, {"portable ", Kernels::portable}}) {
        if (kernels == Kernels::portable && arch.number() != 90) continue;
        text += join(word, "backward ", what, backward_lines(t, arch, Reproducible::no, kernels));
        text += join(word, "reproducible backward ", what, backward_lines(t, arch, Reproducible::yes, kernels));
      }
    }
    for (const TypicalCache& t : caches())
      text += join("cache ", name, " ", to_string(cache_of(t)), t.num_splits ? join(" splits=", t.num_splits) : "",
                   t.v_in_k ? " v in k" : "", t.aligned ? "" : " unaligned", "\n", cache_lines(t, arch));
    for (const int64_t dim : {7, 64, 128, 512})
      text += join("merge ", name, " D=", dim, "\n", line(plan_merge(merge_of(DType::bf16, dim), arch).launch));
  }
  return text;
}

std::vector<std::string> lines_of(std::istream& stream) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Kernels assert what they ask of tiles: here without a compiler, for every pair of head sizes that has kernels of its own.
TEST(Plans, FitEveryPairOfHeadSizes) {
  const auto is_possible = [](const auto& config, const Arch& arch) {
    const Fault fault = limits_of(config, arch).fault;
    return fault != Fault::shape && fault != Fault::shared_memory;
  };
  for (const char* name : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"})
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
      for (const int64_t dim_qk : {32, 64, 96, 128, 192, 256})
        for (const int64_t dim_v : {32, 64, 96, 128, 192, 256})
          for (const int options : {0, int{kDropout}, int{kAllOptions}})
            for (const bool aligned : {false, true}) {
              const Arch arch = arch_named(name);
              const Typical t{.dtype = type,
                              .dim_qk = dim_qk,
                              .dim_v = dim_v,
                              .options = options & ~kScaleFirst,
                              .aligned = aligned};
              const ForwardPlan forward = plan_forward(forward_of(t), arch, Kernels::best);
              const BackwardPlan backward = plan_backward(backward_of(t), arch, Reproducible::no, Kernels::best);
              EXPECT_TRUE(std::visit([&](const auto& c) { return is_possible(c, arch); }, forward.config))
                  << name_of(forward.launch.kernel);
              EXPECT_TRUE(std::visit([&](const auto& c) { return is_possible(c, arch); }, backward.config))
                  << name_of(backward.main.kernel);
              const BackwardPlan in_order = plan_backward(backward_of(t), arch, Reproducible::yes, Kernels::best);
              EXPECT_TRUE(in_order.dq.grid_x == 0 || is_possible(in_order.dq_config, arch))
                  << name_of(in_order.dq.kernel);
              TypicalCache cache{
                  .dtype = type, .dim_qk = dim_qk, .dim_v = dim_v, .len_q = options ? 16 : 1, .aligned = aligned};
              try {
                const KvPlan plan = plan_kv(cache_of(cache), arch, usual_sms(arch), Kernels::best);
                EXPECT_TRUE(is_possible(plan.config, arch)) << name_of(plan.launch.kernel);
              } catch (const FlashAttentionError& error) {
                EXPECT_EQ(error.status(), CUFLASH_UNSUPPORTED);
              }
            }
}

// Sums of dQ in the workspace are as large as dQ in f32, and what counts turns comes on top: two kernels need neither.
TEST(Plans, OfHopperAskForSumsOnlyWhereTheyAdd) {
  const Arch arch = arch_named("sm_90a");
  const auto size = [&](Reproducible reproducible, Kernels kernels, bool dq = true) {
    BackwardProblem p = backward_of({.len_q = 4096, .len_k = 4096});
    if (!dq) p.dq = {};
    return plan_backward(p, arch, reproducible, kernels).workspace.size;
  };
  const size_t usual = size(Reproducible::no, Kernels::best), in_order = size(Reproducible::yes, Kernels::best);
  const BackwardProblem p = backward_of({.len_q = 4096, .len_k = 4096});
  EXPECT_EQ(usual - in_order, static_cast<size_t>(p.batch * p.heads_q * p.len_q * p.dim_qk) * 4);
  EXPECT_EQ(in_order, size(Reproducible::no, Kernels::best, false));
  EXPECT_GT(size(Reproducible::yes, Kernels::portable), usual);
}

// Where an H200 was faster with it, and where sums have to repeat bit for bit.
TEST(Plans, OfHopperGiveDqAKernelOfItsOwnWhereThatPays) {
  const auto separates = [](int64_t dim_qk, int64_t dim_v, int64_t length, bool causal,
                            Reproducible reproducible = Reproducible::no) {
    const BackwardProblem p =
        backward_of({.dim_qk = dim_qk, .dim_v = dim_v, .causal = causal, .len_q = length, .len_k = length});
    const BackwardPlan plan = plan_backward(p, arch_named("sm_90a"), reproducible, Kernels::best);
    EXPECT_EQ(plan.not_sm90, nullptr);
    EXPECT_NE(plan.dq.grid_x == 0, plan.finish.grid_x == 0) << "dQ comes from one of both";
    return plan.dq.grid_x != 0;
  };
  for (const int64_t length : {64, 512, 16384}) {
    EXPECT_TRUE(separates(256, 256, length, false));
    EXPECT_TRUE(separates(192, 128, length, true));
    EXPECT_FALSE(separates(64, 64, length, true));
    EXPECT_FALSE(separates(128, 128, length, false));
  }
  EXPECT_TRUE(separates(128, 128, 512, true));
  EXPECT_FALSE(separates(128, 128, 513, true));
  for (const int64_t dim : {64, 128}) {
    EXPECT_TRUE(separates(dim, dim, 513, false, Reproducible::yes));
    EXPECT_FALSE(separates(dim, dim, 64, false, Reproducible::yes)) << "one sum needs no order";
  }
}

// A tile of keys may be copied before lengths are known where these do not decide which one is the first.
TEST(Plans, OfACacheKnowTheFirstTileWhereKeysBeginWithTheFirstRow) {
  const auto known = [](const TypicalCache& t, auto change) {
    CacheProblem p = cache_of(t);
    change(p);
    const KvPlan plan = plan_kv(p, arch_named("sm_90a"), 132, Kernels::best);
    EXPECT_TRUE(plan.known_splits == 0 || plan.known_splits == plan.eager_splits);
    EXPECT_EQ(plan.known_tiles != 0, plan.known_splits != 0);
    return plan.known_splits != 0;
  };
  static const int32_t number = 0;
  const auto as_it_is = [](CacheProblem&) {};
  EXPECT_TRUE(known({}, as_it_is));
  EXPECT_TRUE(known({.len_new = 3, .num_splits = 4}, as_it_is));
  EXPECT_TRUE(known({.page_size = 64}, as_it_is));
  EXPECT_TRUE(known({.window_left = 8192}, as_it_is));
  EXPECT_FALSE(known({.window_left = 8191}, as_it_is));
  EXPECT_FALSE(known({.page_size = 64}, [](CacheProblem& p) { p.len_k = 0; })) << "a table without columns";
  EXPECT_FALSE(known({.dtype = DType::f32}, as_it_is)) << "no boxes";
  EXPECT_FALSE(known({.batch = 128}, as_it_is)) << "not all CTAs start at one time";
  EXPECT_FALSE(known({}, [](CacheProblem& p) { p.cache.leftpad = &number; }));
  EXPECT_TRUE(known({}, [](CacheProblem& p) { p.cache.entry = &number; }));
}

// Of keys that are not split the second tile is known, too, if there is room for one.
TEST(Plans, OfACacheKnowTwoTilesOfKeysThatAreNotSplit) {
  const auto known = [](int64_t batch, int64_t room) {
    CacheProblem p = cache_of({.batch = batch});
    p.len_k = room;
    return plan_kv(p, arch_named("sm_90a"), 132, Kernels::best).known_tiles;
  };
  EXPECT_EQ(known(1, 8192), 1);
  EXPECT_EQ(known(16, 8192), 2);
  EXPECT_EQ(known(16, 65), 2);
  EXPECT_EQ(known(16, 64), 1);
  EXPECT_EQ(known(128, 8192), 0);
}

// Where a CTA has a multiprocessor for itself it asks for no more keys and values at one time than keep memory busy.
TEST(Plans, OfACacheAskForFewPartsOfTilesAtOneTime) {
  const auto asked = [](const TypicalCache& t, int64_t len_q = 1) {
    CacheProblem p = cache_of(t);
    p.len_q = len_q;
    const KvPlan plan = plan_kv(p, arch_named("sm_90a"), 132, Kernels::best);
    const int64_t parts = parts_of_tile(plan.config);
    EXPECT_GE(plan.loads_in_flight, std::max<int64_t>(2, parts * plan.known_tiles));
    EXPECT_LE(plan.loads_in_flight, parts * plan.config.stages);
    return std::pair<int64_t, int64_t>(plan.loads_in_flight, parts * plan.config.stages);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(asked({.batch = 16}), Pair(4, 12));
  EXPECT_EQ(asked({.batch = 1}), Pair(4, 12)) << "splits";
  EXPECT_EQ(asked({.batch = 16, .page_size = 64}), Pair(4, 12));
  EXPECT_EQ(asked({.batch = 16, .page_size = 16}), Pair(12, 12)) << "small boxes take longer to ask for";
  const auto [two_ctas, two_all] = asked({.batch = 128});
  EXPECT_EQ(two_ctas, two_all) << "two CTAs share a multiprocessor";
  const auto [many, many_all] = asked({.batch = 16}, 32);
  EXPECT_EQ(many, many_all) << "warpgroups";
}

// A grid's second and third dimension end at 65,535.
TEST(Plans, OfACacheHaveGridsThatCanBeLaunched) {
  for (const int64_t batch : {1, 16, 65535, 65536, 100000}) {
    const KvPlan plan = plan_kv(cache_of({.batch = batch}), arch_named("sm_90a"), 132, Kernels::best);
    EXPECT_EQ(plan.launch.ctas(), batch * 8 * plan.splits);
    EXPECT_LE(plan.launch.grid_y, 65535u);
    EXPECT_LE(plan.launch.grid_z, 65535u);
    EXPECT_EQ(plan.config.fast_decode, batch <= 65535);
  }
}

// Splits wait for each other only where all of them run at one time, and where that is faster.
TEST(Plans, OfACacheHaveSplitsThatPostOnlyWhereAllRunAtOneTime) {
  const auto exchanges = [](const TypicalCache& t, int64_t len_q = 1) {
    CacheProblem p = cache_of(t);
    p.len_q = len_q;
    const auto plan_for = [&](SplitReduction reduction) {
      return plan_kv(p, arch_named("sm_90a"), 132, Kernels::best, nullptr, reduction);
    };
    const KvPlan plan = plan_for(SplitReduction::by_exchange), other = plan_for(SplitReduction::by_tickets);
    EXPECT_EQ(plan.launch.cooperative, plan.config.l2_exchange == 1);
    EXPECT_TRUE(!plan.launch.cooperative || plan.launch.ctas() <= 132);
    EXPECT_EQ(plan.launch.programmatic, !plan.no_tma);
    EXPECT_FALSE(other.config.l2_exchange || other.launch.cooperative);
    EXPECT_EQ(plan.splits, other.splits);
    EXPECT_GE(plan.workspace.size, other.workspace.size)
        << "the other one is taken where there is no room for all CTAs";
    return plan.config.l2_exchange == 1;
  };
  EXPECT_TRUE(exchanges({.batch = 1}));
  EXPECT_TRUE(exchanges({.batch = 1, .page_size = 16}));
  EXPECT_FALSE(exchanges({.batch = 16})) << "one split";
  EXPECT_FALSE(exchanges({.batch = 128})) << "more CTAs than multiprocessors";
  EXPECT_FALSE(exchanges({.batch = 1, .len_new = 1})) << "not plain";
  EXPECT_FALSE(exchanges({.batch = 1, .num_splits = 4})) << "not plain";
  EXPECT_FALSE(exchanges({.dtype = DType::f32, .batch = 1})) << "no boxes";
  EXPECT_TRUE(exchanges({.batch = 1}, 32));
  EXPECT_FALSE(exchanges({.batch = 1}, 64)) << "many rows, few splits";
}

TEST(Plans, AreThoseOfTheTable) {
  const std::string path = CUFLASH_PLANS_FILE, plans = all_plans();
  if (std::getenv("CUFLASH_UPDATE_PLANS")) std::ofstream(path) << plans;
  std::ifstream file(path);
  std::istringstream now(plans);
  const auto expected = lines_of(file), actual = lines_of(now);
  std::string problem;
  for (size_t n = 0; n < std::min(actual.size(), expected.size()); ++n) {
    if (!actual[n].starts_with(" ")) problem = actual[n];
    ASSERT_EQ(actual[n], expected[n]) << path << ", line " << n + 1 << ", " << problem
                                      << "\nCUFLASH_UPDATE_PLANS=1 writes the file anew";
  }
  EXPECT_EQ(actual.size(), expected.size()) << "CUFLASH_UPDATE_PLANS=1 writes the file anew";
}

}  // namespace
}  // namespace cuflash::cuda
