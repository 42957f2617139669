// Plans for a table of problems, compared with tests/cuda/plan/cuda_plans.txt, so that a review shows every change of a
// plan. CUFLASH_UPDATE_PLANS=1 build/release/bin/cuda_plans_test rewrites the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cuda/families/registry.h"
#include "cuda/jit/program.h"
#include "cuda/plan/typical.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

std::vector<Typical> problems() {
  std::vector<Typical> all;
  for (const DType type : {DType::bf16, DType::f32, DType::f64})
    for (const int64_t dim : {64, 128, 256}) all.push_back({.dtype = type, .dim_qk = dim, .dim_v = dim});
  for (const int options : {int{kBias}, int{kDropout}, kAllOptions & ~kScaleFirst}) all.push_back({.options = options});
  for (const int options : {kAlibi, kMaskTensor})
    for (const int64_t dim : {64, 128}) all.push_back({.dim_qk = dim, .dim_v = dim, .options = options});
  all.push_back({.options = kScaleFirst});
  all.push_back({.dtype = DType::f16, .causal = true, .heads_k = 2});
  all.push_back({.dim_qk = 192, .dim_v = 128, .sink = true});
  all.push_back({.dim_qk = 1, .dim_v = 7, .aligned = false});
  all.push_back({.dim_qk = 128, .dim_v = 128, .batch = 65536, .len_q = 1, .len_k = 100000});
  all.push_back({.batch = 0});
  all.push_back({.len_q = 0});
  all.push_back({.len_k = 0});
  all.push_back({.dim_qk = 264});
  // Short sequences.
  all.push_back({.dim_qk = 32, .dim_v = 32, .batch = 512, .len_q = 49, .len_k = 49});
  all.push_back({.dim_qk = 32, .dim_v = 32, .options = kBias, .batch = 512, .len_q = 64, .len_k = 64});
  for (const int64_t dim : {64, 128})
    for (const int64_t length : {64, 128, 256})
      all.push_back({.dim_qk = dim, .dim_v = dim, .batch = 64, .len_q = length, .len_k = length});
  all.push_back({.dim_qk = 64, .dim_v = 64, .batch = 64, .len_q = 197, .len_k = 197});
  all.push_back({.dim_qk = 64, .dim_v = 64, .batch = 16, .len_q = 1024, .len_k = 77});
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
  for (const int64_t len_q : {64, 65, 512}) all.push_back({.len_q = len_q, .len_new = len_q});
  all.push_back({.dtype = DType::f16, .dim_qk = 64, .dim_v = 64, .batch = 16, .len_q = 2048, .len_new = 2048});
  all.push_back({.dim_qk = 256, .dim_v = 256, .options = kSoftcap, .batch = 4, .len_q = 300});
  all.push_back({.batch = 4, .len_q = 512, .page_size = 64});
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

// Why the portable family made a plan, if the architecture has another one and kernels do not say it.
template <class Problem, class Plan>
std::string rejection_line(const Problem& p, const Plan& plan, const Arch& arch, KernelPreference kernels) {
  if (plan.family->serves || !arch.wgmma || kernels == KernelPreference::portable) return "";
  const Rejection last = rejections(p, arch, kernels).back();
  return join("  not ", last.family, ": ", last.reason, "\n");
}

std::string forward_lines(const Typical& t, const Arch& arch, KernelPreference kernels) {
  return or_refusal([&] {
    const ForwardPlan plan = plan_forward(forward_of(t), arch, kernels);
    return rejection_line(forward_of(t), plan, arch, kernels) +
           (plan.launch.grid_x == 0 ? std::string("  nothing to do\n") : line(plan.launch));
  });
}

std::string backward_lines(const Typical& t, const Arch& arch, Reproducible reproducible, KernelPreference kernels) {
  return or_refusal([&] {
    const BackwardPlan plan = plan_backward(backward_of(t), arch, reproducible, kernels);
    std::string text = rejection_line(backward_of(t), plan, arch, kernels);
    for (const Launch* l : plan.launches()) text += line(*l);
    return text + join("  workspace ", plan.workspace.size, "\n");
  });
}

std::string cache_lines(const TypicalCache& t, const Arch& arch) {
  return or_refusal([&] {
    const KvPlan plan = plan_kv(cache_of(t), arch, arch.usual_sms, KernelPreference::best);
    if (plan.launch.grid_x == 0) return std::string("  nothing to do\n");
    std::string text;
    for (const Launch* l : plan.launches()) text += line(*l);
    return join(text, "  splits ", plan.splits, ", ", plan.base_splits, " of ", plan.min_tiles_per_split,
                " tiles at least, ", plan.short_splits, " short, ", plan.prefetched_splits, " with a known tile, ",
                plan.row_tiles, " tiles of rows, workspace ", plan.workspace.size, "\n");
  });
}

std::string all_plans() {
  std::string text;
  for (const char* name : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
    const Arch arch = arch_named(name);
    for (const Typical& t : problems()) {
      const std::string what = join(name, " ", to_string(forward_of(t)), t.aligned ? "" : " unaligned", "\n");
      text += join("forward ", what, forward_lines(t, arch, KernelPreference::best));
      if (arch.wgmma) text += join("portable forward ", what, forward_lines(t, arch, KernelPreference::portable));
      for (const auto& [word, kernels] :
           {std::pair{"", KernelPreference::best}, {"portable ", KernelPreference::portable}}) {
        if (kernels == KernelPreference::portable && !arch.wgmma) continue;
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

// The static assertions of kernels about tiles, checked without a compiler for every pair of padded head sizes.
TEST(Plans, FitEveryPairOfHeadSizes) {
  const auto is_possible = [](const auto& plan, const Launch& launch, const Arch& arch) {
    const Fault fault = plan.family->limits(launch.kernel, arch).fault;
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
              const ForwardPlan forward = plan_forward(forward_of(t), arch, KernelPreference::best);
              const BackwardPlan backward =
                  plan_backward(backward_of(t), arch, Reproducible::no, KernelPreference::best);
              EXPECT_TRUE(is_possible(forward, forward.launch, arch)) << name_of(forward.launch.kernel);
              EXPECT_TRUE(is_possible(backward, backward.main, arch)) << name_of(backward.main.kernel);
              const BackwardPlan in_order =
                  plan_backward(backward_of(t), arch, Reproducible::yes, KernelPreference::best);
              EXPECT_TRUE(in_order.dq.grid_x == 0 || is_possible(in_order, in_order.dq, arch))
                  << name_of(in_order.dq.kernel);
              TypicalCache cache{
                  .dtype = type, .dim_qk = dim_qk, .dim_v = dim_v, .len_q = options ? 16 : 1, .aligned = aligned};
              try {
                const KvPlan plan = plan_kv(cache_of(cache), arch, arch.usual_sms, KernelPreference::best);
                EXPECT_TRUE(is_possible(plan, plan.launch, arch)) << name_of(plan.launch.kernel);
              } catch (const FlashAttentionError& error) {
                EXPECT_EQ(error.status(), CUFLASH_UNSUPPORTED);
              }
            }
}

// Sums of dQ in the workspace are as large as dQ in f32, and the semaphores come on top: two kernels need neither.
TEST(Plans, OfSm90HaveSumsOnlyWhereTheyAdd) {
  const Arch arch = arch_named("sm_90a");
  const auto size = [&](Reproducible reproducible, KernelPreference kernels, bool dq = true) {
    BackwardProblem p = backward_of({.len_q = 4096, .len_k = 4096});
    if (!dq) p.dq = {};
    return plan_backward(p, arch, reproducible, kernels).workspace.size;
  };
  const size_t usual = size(Reproducible::no, KernelPreference::best),
               in_order = size(Reproducible::yes, KernelPreference::best);
  const BackwardProblem p = backward_of({.len_q = 4096, .len_k = 4096});
  const int64_t sums = p.len_q * p.dim_qk, counts = 2;  // per head
  const size_t ticket = 64;                             // counts the query tiles that the main kernel prepares
  EXPECT_EQ(usual - in_order, static_cast<size_t>(p.batch * p.heads_q * (sums + counts)) * 4 + ticket);
  EXPECT_EQ(in_order, size(Reproducible::no, KernelPreference::best, false));
  EXPECT_GT(size(Reproducible::yes, KernelPreference::portable), usual);
}

// Plans give dQ a separate kernel if an H200 is faster with it, or if sums must be bitwise reproducible.
TEST(Plans, OfSm90GiveDqItsOwnKernelWhereThatPays) {
  const auto separates = [](int64_t dim_qk, int64_t dim_v, int64_t length, bool causal,
                            Reproducible reproducible = Reproducible::no, int64_t batch = 8) {
    const BackwardProblem p = backward_of(
        {.dim_qk = dim_qk, .dim_v = dim_v, .causal = causal, .batch = batch, .len_q = length, .len_k = length});
    const BackwardPlan plan = plan_backward(p, arch_named("sm_90a"), reproducible, KernelPreference::best);
    EXPECT_EQ(plan.family, &sm90_backward);
    const int kernels =
        (plan.dq.grid_x != 0) + (plan.finish.grid_x != 0) + stores_dq(plan.main.kernel.as<Sm90BackwardConfig>());
    EXPECT_EQ(kernels, 1) << "dQ comes from one of them";
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
    EXPECT_TRUE(separates(dim, dim, 2048, false, Reproducible::yes));
    EXPECT_TRUE(separates(dim, dim, 513, false, Reproducible::yes));
    EXPECT_EQ(separates(dim, dim, 512, false, Reproducible::yes), dim == 128) << "a CTA has all keys of a head";
    EXPECT_FALSE(separates(dim, dim, 64, false, Reproducible::yes)) << "one sum needs no order";
    EXPECT_TRUE(separates(dim, dim, 64, false, Reproducible::no, 4)) << "both kernels run at the same time";
    EXPECT_FALSE(separates(dim, dim, 2048, false, Reproducible::no, 1)) << "they have too many tiles for that";
  }
}

// One key tile has all terms of dQ, so that the main kernel stores it. The fewest padded keys decide about warpgroups.
TEST(Plans, OfSm90StoreDqOfOneKeyTile) {
  struct Tiles {
    int tile_k, dq, ctas_per_sm;
    bool operator==(const Tiles&) const = default;
  };
  const auto tiles = [](const Typical& t, auto change) {
    BackwardProblem p = backward_of(t);
    change(p);
    const BackwardPlan plan = plan_backward(p, arch_named("sm_90a"), Reproducible::no, KernelPreference::best);
    const auto c = plan.main.kernel.as<Sm90BackwardConfig>();
    EXPECT_EQ(plan.finish.grid_x == 0, c.dq != kAddsDq);
    EXPECT_EQ(plan.main.ctas_per_sm, ctas_per_sm(c));
    return Tiles{plan.tile_k, c.dq, plan.main.ctas_per_sm};
  };
  const auto as_it_is = [](BackwardProblem&) {};
  const auto sequences = [](int64_t len_q, int64_t len_k, int64_t dim = 64, int options = 0) {
    return Typical{.dim_qk = dim, .dim_v = dim, .options = options, .batch = 64, .len_q = len_q, .len_k = len_k};
  };
  EXPECT_EQ(tiles(sequences(49, 49, 32), as_it_is), Tiles(64, kStoresDq, 3));
  EXPECT_EQ(tiles(sequences(64, 64), as_it_is), Tiles(64, kStoresDq, 2));
  EXPECT_EQ(tiles(sequences(1000, 77), as_it_is), Tiles(128, kStoresDq, 1));
  EXPECT_EQ(tiles(sequences(192, 192), as_it_is), Tiles(192, kStoresDq, 1));
  EXPECT_EQ(tiles(sequences(192, 192, 64, kBias), as_it_is), Tiles(192, kAddsDq, 1)) << "registers of the producer";
  EXPECT_EQ(tiles(sequences(128, 128, 64, kBias), as_it_is), Tiles(128, kStoresDq, 1));
  EXPECT_EQ(tiles(sequences(197, 197), as_it_is), Tiles(128, kKeepsDq, 1)) << "256 keys instead of 384";
  EXPECT_EQ(tiles(sequences(300, 300), as_it_is), Tiles(192, kKeepsDq, 1));
  EXPECT_EQ(tiles(sequences(64, 64, 128), as_it_is), Tiles(128, kKeepsDq, 1));
  EXPECT_EQ(tiles(sequences(200, 200, 128), as_it_is), Tiles(128, kNoDq, 1)) << "a dQ kernel is faster";
  EXPECT_EQ(tiles(sequences(200, 200, 128), [](BackwardProblem& p) { p.batch = 8; }), Tiles(128, kKeepsDq, 1));
  EXPECT_EQ(tiles(sequences(200, 200, 96), as_it_is), Tiles(128, kKeepsDq, 1));
  EXPECT_EQ(tiles(sequences(300, 300, 128), as_it_is), Tiles(128, kAddsDq, 1));
  const auto causal = [](BackwardProblem& p) { p.window_right = 0; };
  EXPECT_EQ(tiles(sequences(256, 256, 128), causal), Tiles(128, kKeepsDq, 1));
  EXPECT_EQ(tiles(sequences(257, 257, 128), causal), Tiles(128, kNoDq, 1)) << "more than 128 KiB of sums";
  const auto* lengths = reinterpret_cast<const int32_t*>(uintptr_t{1} << 45);
  const auto after_change = [&](auto change) { return tiles(sequences(64, 64), change); };
  EXPECT_EQ(after_change([&](BackwardProblem& p) { p.used_q = lengths; }), Tiles(128, kAddsDq, 1));
  EXPECT_EQ(after_change([&](BackwardProblem& p) { p.used_k = lengths; }), Tiles(128, kAddsDq, 1));
  EXPECT_EQ(after_change([](BackwardProblem& p) { p.window_right = 0; }), Tiles(64, kStoresDq, 2));
  EXPECT_EQ(after_change([](BackwardProblem& p) { p.window_right = -1; }), Tiles(128, kAddsDq, 1))
      << "the first query sees no key";
  EXPECT_EQ(after_change([](BackwardProblem& p) { p.window_left = -1; }), Tiles(128, kAddsDq, 1))
      << "the last query sees no key";
}

// The producer may load a tile of keys before lengths are known if these do not decide which tile is the first.
TEST(Plans, OfACacheKnowTheFirstTileWhereKeysBeginWithTheFirstRow) {
  const auto known = [](const TypicalCache& t, auto change) {
    CacheProblem p = cache_of(t);
    change(p);
    const KvPlan plan = plan_kv(p, arch_named("sm_90a"), 132, KernelPreference::best);
    EXPECT_TRUE(plan.prefetched_splits == 0 || plan.prefetched_splits == plan.base_splits);
    EXPECT_EQ(plan.prefetched_tiles != 0, plan.prefetched_splits != 0);
    return plan.prefetched_splits != 0;
  };
  static const int32_t number = 0;
  const auto as_it_is = [](CacheProblem&) {};
  EXPECT_TRUE(known({}, as_it_is));
  EXPECT_TRUE(known({.len_new = 3, .num_splits = 4}, as_it_is));
  EXPECT_TRUE(known({.page_size = 64}, as_it_is));
  EXPECT_TRUE(known({.window_left = 8192}, as_it_is));
  EXPECT_FALSE(known({.window_left = 8191}, as_it_is));
  EXPECT_FALSE(known({.page_size = 64}, [](CacheProblem& p) { p.len_k = 0; })) << "a table without columns";
  EXPECT_FALSE(known({.dtype = DType::f32}, as_it_is)) << "no TMA";
  EXPECT_FALSE(known({.batch = 128}, as_it_is)) << "not all CTAs are resident";
  EXPECT_FALSE(known({}, [](CacheProblem& p) { p.cache.leftpad = &number; }));
  EXPECT_TRUE(known({}, [](CacheProblem& p) { p.cache.entry = &number; }));
}

// The second tile of keys that are not split is known, too, if the cache has room for one.
TEST(Plans, OfACacheKnowTwoTilesOfKeysThatAreNotSplit) {
  const auto known = [](int64_t batch, int64_t room) {
    CacheProblem p = cache_of({.batch = batch});
    p.len_k = room;
    return plan_kv(p, arch_named("sm_90a"), 132, KernelPreference::best).prefetched_tiles;
  };
  EXPECT_EQ(known(1, 8192), 1);
  EXPECT_EQ(known(16, 8192), 2);
  EXPECT_EQ(known(16, 65), 2);
  EXPECT_EQ(known(16, 64), 1);
  EXPECT_EQ(known(128, 8192), 0);
}

// A CTA that is alone on its SM keeps no more keys and values in flight than keep memory busy.
TEST(Plans, OfACacheKeepFewPartsOfTilesInFlight) {
  const auto asked = [](const TypicalCache& t, int64_t len_q = 1) {
    CacheProblem p = cache_of(t);
    p.len_q = len_q;
    const KvPlan plan = plan_kv(p, arch_named("sm_90a"), 132, KernelPreference::best);
    const auto c = plan.launch.kernel.as<KvConfig>();
    const int64_t parts = parts_of_tile(c);
    EXPECT_GE(plan.loads_in_flight, std::max<int64_t>(2, parts * plan.prefetched_tiles));
    EXPECT_LE(plan.loads_in_flight, parts * c.stages);
    return std::pair<int64_t, int64_t>(plan.loads_in_flight, parts * c.stages);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(asked({.batch = 16}), Pair(4, 12));
  EXPECT_EQ(asked({.batch = 1}), Pair(4, 12)) << "splits";
  EXPECT_EQ(asked({.batch = 16, .page_size = 64}), Pair(4, 12));
  EXPECT_EQ(asked({.batch = 16, .page_size = 16}), Pair(12, 12)) << "small boxes take longer to issue";
  const auto [two_ctas, two_all] = asked({.batch = 128});
  EXPECT_EQ(two_ctas, two_all) << "two CTAs share an SM";
  const auto [many, many_all] = asked({.batch = 16}, 32);
  EXPECT_EQ(many, many_all) << "warpgroups";
}

// The second and third dimension of a grid are at most 65,535.
TEST(Plans, OfACacheHaveGridsThatCanBeLaunched) {
  for (const int64_t batch : {1, 16, 65535, 65536, 100000}) {
    const KvPlan plan = plan_kv(cache_of({.batch = batch}), arch_named("sm_90a"), 132, KernelPreference::best);
    EXPECT_EQ(plan.launch.ctas(), batch * 8 * plan.splits);
    EXPECT_LE(plan.launch.grid_y, 65535u);
    EXPECT_LE(plan.launch.grid_z, 65535u);
    EXPECT_EQ(plan.launch.kernel.as<KvConfig>().fast_decode, batch <= 65535);
  }
}

// Splits exchange their sums only if all CTAs are resident at once, and if that is faster.
TEST(Plans, OfACacheExchangeSumsOnlyWhereAllCtasAreResident) {
  const auto exchange = [](const TypicalCache& t, int64_t len_q = 1) {
    CacheProblem p = cache_of(t);
    p.len_q = len_q;
    const auto plan_for = [&](SplitReduction reduction) {
      return plan_kv(p, arch_named("sm_90a"), 132, KernelPreference::best, nullptr, reduction);
    };
    const KvPlan plan = plan_for(SplitReduction::exchange), other = plan_for(SplitReduction::ticket);
    const bool exchanges = plan.launch.kernel.as<KvConfig>().l2_exchange == 1;
    EXPECT_EQ(plan.launch.cooperative, exchanges);
    EXPECT_TRUE(!plan.launch.cooperative || plan.launch.ctas() <= 132);
    EXPECT_EQ(plan.launch.programmatic, plan.family == &sm90_kv);
    EXPECT_FALSE(other.launch.kernel.as<KvConfig>().l2_exchange || other.launch.cooperative);
    EXPECT_EQ(plan.splits, other.splits);
    EXPECT_GE(plan.workspace.size, other.workspace.size) << "the other plan is the fallback if not all CTAs fit";
    return exchanges;
  };
  EXPECT_TRUE(exchange({.batch = 1}));
  EXPECT_TRUE(exchange({.batch = 1, .page_size = 16}));
  EXPECT_FALSE(exchange({.batch = 16})) << "one split";
  EXPECT_FALSE(exchange({.batch = 128})) << "more CTAs than SMs";
  EXPECT_FALSE(exchange({.batch = 1, .len_new = 1})) << "not a fast decode";
  EXPECT_FALSE(exchange({.batch = 1, .num_splits = 4})) << "not a fast decode";
  EXPECT_FALSE(exchange({.dtype = DType::f32, .batch = 1})) << "no TMA";
  EXPECT_TRUE(exchange({.batch = 1}, 32));
  EXPECT_FALSE(exchange({.batch = 1}, 64)) << "many rows, few splits";
}

// The number of SMs decides how many splits there are, and whether they exchange their sums. Nothing else of a kernel
// depends on it, and a pack has both variants: it serves every board of an architecture.
TEST(Plans, OfACacheTakeKernelsOfThePackOnEveryBoard) {
  const Arch arch = arch_named("sm_90a");
  const std::vector<KernelKey> pack = typical_kernels(arch);
  const auto has = [&](const KernelKey& kernel) { return std::find(pack.begin(), pack.end(), kernel) != pack.end(); };
  const auto variant = [&](const KernelKey& kernel, int exchanges) {
    auto c = kernel.as<KvConfig>();
    c.l2_exchange = exchanges;
    return key_of(*kernel.type, arch, c);
  };
  int both = 0;
  for (const KernelKey& kernel : pack) {
    if (kernel.type->name != std::string_view("sm90_kv")) continue;
    const auto c = kernel.as<KvConfig>();
    if (!c.fast_decode || c.ctas_per_sm != 1) continue;
    EXPECT_TRUE(has(variant(kernel, 0)) && has(variant(kernel, 1))) << name_of(kernel);
    ++both;
  }
  EXPECT_GT(both, 0);
  for (const TypicalCache& t : typical_caches({{DType::bf16}, {}}))
    for (const int num_sms : {1, 7, 16, 66, 78, 114, 132, 144, 264}) {
      const KvPlan usual = plan_kv(cache_of(t), arch, arch.usual_sms, KernelPreference::best);
      const KvPlan plan = plan_kv(cache_of(t), arch, num_sms, KernelPreference::best);
      EXPECT_EQ(variant(plan.launch.kernel, 0), variant(usual.launch.kernel, 0)) << name_of(plan.launch.kernel);
      EXPECT_TRUE(has(plan.launch.kernel)) << name_of(plan.launch.kernel) << " for " << num_sms << " SMs";
    }
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
                                      << "\nCUFLASH_UPDATE_PLANS=1 rewrites the file";
  }
  EXPECT_EQ(actual.size(), expected.size()) << "CUFLASH_UPDATE_PLANS=1 rewrites the file";
}

}  // namespace
}  // namespace cuflash::cuda
