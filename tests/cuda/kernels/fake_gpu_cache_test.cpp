// Attention over a KV cache on fake GPUs, with the kernel itself emulated on the host: see tests/cuda/kernel_emulator.

#include <cmath>
#include <cstring>
#include <random>

#include "cuda/driver/device.h"
#include "cuda/families/params_kv.h"
#include "cuda/jit/program.h"
#include "problem/describe_cache.h"
#include "tests/cpu/kv/cache_cases.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"
#include "tests/cuda/fake_gpu/few_sms.h"
#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/cuda/kernel_emulator/kv_kernel.h"
#include "tests/properties/property.h"
#include "tests/shared/counted_allocations.h"

namespace cuflash::test {
namespace {

class FakeCache : public ::testing::Test {
 protected:
  FakeCache() : gpus(loaded_fake_gpu()) { gpus.on_launch = nullptr; }

  FakeGpu& gpus;
};

cuda::KvPlan plan_of(const CacheScene& s) {
  const cuda::DeviceState& state = cuda::device(0);
  Snapshot copies;
  return cuda::plan_kv(describe(detail::to_c(s.attention), to_c(s.cache), Memory{0}, copies), state.arch,
                       state.num_sms);
}

KvConfig config_of(const cuda::KvPlan& plan) { return plan.launch.kernel.as<KvConfig>(); }
bool uses_tma(const cuda::KvPlan& plan) { return config_of(plan).copy == kCopyTma; }

template <class Config>
std::vector<int> ints_of(const Config& config) {
  std::vector<int> ints(sizeof config / sizeof(int));
  std::memcpy(ints.data(), &config, sizeof config);
  return ints;
}

// Settings for the emulation of the next launches.
struct Running {
  std::vector<int> config;
  bool boxes = false;
  uint64_t seed = 0;
  int launches = 0;
  std::string fault;
} running;

kernel_emulator::Grid grid_of(const FakeLaunch& launch) { return {launch.grid_x, launch.grid_y, launch.grid_z}; }

void run_cache_kernel(const FakeLaunch& launch) {
  ++running.launches;
  // Tensor maps are aligned more strictly than a block of params.
  ASSERT_EQ(launch.params_size, running.boxes ? 0 : sizeof(KvParams));
  running.fault =
      kernel_emulator::run_cache_kernel(running.config.data(), running.config.size(), launch.params, grid_of(launch),
                                        static_cast<int>(launch.threads), launch.shared_bytes, running.seed);
}
void run_merge_kernel(const FakeLaunch& launch) {
  ++running.launches;
  ASSERT_EQ(launch.params_size, sizeof(MergeParams));
  running.fault = kernel_emulator::run_merge_kernel(running.config.data(), running.config.size(), launch.params,
                                                    grid_of(launch), static_cast<int>(launch.threads), running.seed);
}

// The workspace is dirty: it holds arbitrary bytes, or what an earlier call left there.
std::string run_scene(CacheScene& scene, DeviceBuffer& workspace, uint64_t seed) {
  const cuda::KvPlan plan = plan_of(scene);
  running = {ints_of(config_of(plan)), uses_tma(plan), seed, 0, ""};
  const size_t bytes = workspace_size(scene.attention, scene.cache);
  if (bytes != plan.workspace.size) return "the workspace has another size than the plan says";
  if (workspace.bytes() < bytes) workspace = DeviceBuffer(bytes);
  flash_attention_with_cache(scene.attention, scene.cache,
                             {.workspace = workspace.data(), .workspace_size = workspace.bytes()});
  if (running.launches != (plan.launch.grid_x == 0 ? 0 : 1)) return "was not launched once";
  return running.fault.empty() ? scene.fault() : running.fault;
}

TEST_F(FakeCache, RandomCallsEqualTheDefinition) {
  gpus.on_launch = run_cache_kernel;
  DeviceBuffer workspace(16);
  for (uint64_t index = 0; index < static_cast<uint64_t>(scaled(90)); ++index) {
    const CacheCase c = random_cache_case(test_seed(), index);
    CacheScene scene(c);
    ASSERT_EQ(run_scene(scene, workspace, index), "") << "case " << index << ": " << describe(c);
  }
}

// Many queries: a call is up to four launches, and which kernel each of them runs is in its program.
struct RunningForward {
  uint64_t seed = 0;
  int launches = 0;
  std::string fault;
} running_forward;

void run_forward_kernel(const FakeLaunch& launch) {
  ++running_forward.launches;
  if (!running_forward.fault.empty()) return;
  running_forward.fault = kernel_emulator::run_forward_kernel(launch.program, launch.params, grid_of(launch),
                                                              static_cast<int>(launch.threads), launch.shared_bytes,
                                                              ++running_forward.seed);
}

std::string run_prefill(CacheScene& scene, DeviceBuffer& workspace, uint64_t seed) {
  const cuda::KvPlan plan = plan_of(scene);
  if (!plan.forward) return "the plan has no forward kernels";
  running_forward = {seed, 0, ""};
  const size_t bytes = workspace_size(scene.attention, scene.cache);
  if (bytes != plan.workspace.size) return "the workspace has another size than the plan says";
  if (workspace.bytes() < bytes) workspace = DeviceBuffer(bytes);
  flash_attention_with_cache(scene.attention, scene.cache,
                             {.workspace = workspace.data(), .workspace_size = workspace.bytes()});
  int launches = 0;
  for (const cuda::Launch* launch : plan.launches()) launches += launch->grid_x != 0;
  if (running_forward.fault.empty() && running_forward.launches != launches) return "another number of launches";
  return running_forward.fault.empty() ? scene.fault() : running_forward.fault;
}

// The portable kernels serve these calls as any others.
bool has_forward_kernels() {
  return cuda::device(0).arch.wgmma && cuda::kernel_preference() == cuda::KernelPreference::best;
}

TEST_F(FakeCache, RandomCallsWithManyQueriesEqualTheDefinition) {
  if (!has_forward_kernels()) GTEST_SKIP() << "only sm90 has forward kernels for a cache";
  gpus.on_launch = run_forward_kernel;
  DeviceBuffer workspace(16);
  for (uint64_t index = 0; index < static_cast<uint64_t>(scaled(24)); ++index) {
    const CacheCase c = random_prefill_case(test_seed(), index);
    CacheScene scene(c);
    ASSERT_EQ(run_prefill(scene, workspace, index), "") << "case " << index << ": " << describe(c);
  }
}

// Keys that CTAs share, of a dense call and of a packed one; tiles from a list.
TEST_F(FakeCache, ManyQueriesOverSplitKeysAndListedTilesEqualTheDefinition) {
  if (!has_forward_kernels()) GTEST_SKIP() << "only sm90 has forward kernels for a cache";
  gpus.on_launch = run_forward_kernel;
  DeviceBuffer workspace(16);
  for (const bool packed : {false, true}) {
    CacheScene split({.group = 4,
                      .packed_q = packed,
                      .page_size = packed ? 0 : 48,
                      .len_q = {68, 66},
                      .rows = {1950, 0},
                      .len_new = {50, 66},
                      .room = 2000,
                      .window_right = 0,
                      .rotary = 32});
    ASSERT_GT(plan_of(split).splits, 1);
    const std::string text = explain(split.attention, split.cache);
    for (const char* words :
         {"many queries: ", "prepare_cache:", "sm90_forward:", " of the keys, for ", "combine_splits:"})
      EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
    EXPECT_EQ(run_prefill(split, workspace, 3), "") << packed;
    CacheCase c{.dim_qk = 96,
                .dim_v = 96,
                .heads_k = 4,
                .group = 4,
                .packed_q = packed,
                .page_size = packed ? 16 : 0,
                .room = 130};
    c.window_right = 0, c.sink = true;
    const FewSms few;
    for (int32_t b = 0; b < 3; ++b) {
      c.len_q.push_back(b == 2 || packed ? 65 + b % 3 : b * 5 % 12);
      c.rows.push_back(b * 7 % 50), c.len_new.push_back(b * 11 % 70);
    }
    CacheScene listed(c);
    ASSERT_NE(plan_of(listed).forward->list.grid_x, 0u);
    EXPECT_EQ(run_prefill(listed, workspace, 4), "") << packed;
  }
}

// Kernels for fast decode, without the code for anything else: see KvConfig. Also first tiles that no split needs.
TEST_F(FakeCache, PlainCallsEqualTheDefinition) {
  gpus.on_launch = run_cache_kernel;
  DeviceBuffer workspace(16);
  const std::vector<int32_t> lengths[] = {{0, 700, 1}, {900, 64, 129}};
  uint64_t seed = 0;
  for (const auto& rows : lengths)
    for (const int64_t page_size : {0, 16})
      for (const bool options : {false, true}) {
        const CacheCase c{.group = options ? 24 : 4,  // rows of one tile of 32 or 16
                          .page_size = page_size,
                          .has_entries = page_size == 0 && options,
                          .len_q = {1, 1, 1},
                          .rows = rows,
                          .room = options ? 900 : 960,
                          .softcap = options ? 20.0 : 0.0,
                          .alibi = options,
                          .seed = ++seed};
        CacheScene scene(c);
        scene.attention.seqlens_q = {};
        const cuda::KvPlan plan = plan_of(scene);
        ASSERT_TRUE(!uses_tma(plan) || config_of(plan).fast_decode) << describe(c);
        EXPECT_EQ(run_scene(scene, workspace, seed), "") << describe(c);
      }
}

// Calls whose CTAs are all resident. What an earlier call left in the workspace, or any other content, must not be
// taken for a flagged pair.
CacheCase posted_case(int64_t group, int64_t page_size, std::vector<int32_t> rows, uint64_t seed) {
  const bool options = group > 16;  // rows of one tile of 32
  return {.heads_k = 2,
          .group = group,
          .page_size = page_size,
          .len_q = {1, 1},
          .rows = std::move(rows),
          .room = 960,
          .softcap = options ? 20.0 : 0.0,
          .alibi = options,
          .seed = seed};
}
TEST_F(FakeCache, SplitsExchangePartials) {
  static bool early = false, together = false;
  gpus.on_launch = [](const FakeLaunch& launch) {
    early = launch.programmatic, together = launch.cooperative;
    run_cache_kernel(launch);
  };
  DeviceBuffer workspace(16);
  uint64_t seed = 0;
  for (const int64_t group : {1, 4, 16, 24})
    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{900, 260}, {960, 64}, {0, 700}}) {
      ++seed;
      const CacheCase c = posted_case(group, seed % 2 == 0 ? 0 : 16, rows, seed);
      CacheScene scene(c);
      scene.attention.seqlens_q = {};
      const cuda::KvPlan plan = plan_of(scene);
      if (!uses_tma(plan)) GTEST_SKIP() << "only sm90 kernels exchange sums";
      ASSERT_TRUE(config_of(plan).l2_exchange) << describe(c);
      EXPECT_EQ(run_scene(scene, workspace, seed), "") << describe(c);
      EXPECT_TRUE(early && together);
    }
}
// Values that are columns of keys, with warps that share the columns.
TEST_F(FakeCache, SplitsExchangePartialsOfValuesInKeys) {
  gpus.on_launch = run_cache_kernel;
  DeviceBuffer workspace(16);
  for (const int64_t group : {3, 17}) {
    CacheScene scene({.dim_qk = 576,
                      .dim_v = 512,
                      .heads_k = 1,
                      .group = group,
                      .v_in_k = true,
                      .page_size = 64,
                      .len_q = {1},
                      .rows = {900},
                      .room = 960});
    scene.attention.seqlens_q = {};
    const cuda::KvPlan plan = plan_of(scene);
    if (!uses_tma(plan)) GTEST_SKIP() << "only sm90 kernels exchange sums";
    ASSERT_TRUE(config_of(plan).l2_exchange && config_of(plan).v_in_k);
    EXPECT_EQ(run_scene(scene, workspace, 3), "") << group;
  }
}
// No CTA waits for one that is not resident: if not all of them fit, splits are reduced by tickets.
TEST_F(FakeCache, SplitsReduceByTicketWhereNotAllAreResident) {
  static int launches = 0;
  static bool together = true;
  gpus.on_launch = [](const FakeLaunch& launch) {
    ++launches, together = launch.cooperative;
    run_cache_kernel(launch);
  };
  CacheScene scene(posted_case(4, 0, {900, 260}, 1));
  scene.attention.seqlens_q = {};
  const cuda::KvPlan plan = plan_of(scene);
  if (!uses_tma(plan)) GTEST_SKIP() << "only sm90 kernels exchange sums";
  ASSERT_TRUE(config_of(plan).l2_exchange);
  KvConfig by_tickets = config_of(plan);
  by_tickets.l2_exchange = 0;
  running = {ints_of(by_tickets), true, 1, 0, ""};
  gpus.crowded = true;
  const DeviceBuffer workspace(workspace_size(scene.attention, scene.cache));
  flash_attention_with_cache(scene.attention, scene.cache,
                             {.workspace = workspace.data(), .workspace_size = workspace.bytes()});
  gpus.crowded = false;
  EXPECT_EQ(launches, 1);
  EXPECT_FALSE(together);
  EXPECT_EQ(running.fault, "");
  EXPECT_EQ(scene.fault(), "");
}

// The part of a call that belongs to sequence b.
void keep_sequence(CacheScene& scene, int64_t b) {
  Attention& a = scene.attention;
  CacheTensors& c = scene.cache;
  const auto keep = [&](auto& t) {
    if (t) t = narrow(t, 0, b, 1);
  };
  keep(a.q), keep(a.seqlens_q), keep(c.seqlens), keep(c.block_table), keep(c.batch_idx), keep(c.leftpad);
  keep(c.k_new), keep(c.v_new), keep(c.seqlens_new), keep(c.o), keep(c.lse);
}

TEST_F(FakeCache, WithAFixedNumberOfSplitsNothingOfTheBatchChangesARow) {
  gpus.on_launch = run_cache_kernel;
  const CacheCase c{.heads_k = 2,
                    .group = 4,
                    .page_size = 16,
                    .len_q = {2, 1, 0},
                    .rows = {500, 90, 64},
                    .pad = {3, 0, 1},
                    .len_new = {1, 1, 0},
                    .room = 600,
                    .window_right = 0,
                    .num_splits = 3};
  DeviceBuffer workspace(16);
  for (int64_t b = 0; b < 3; ++b) {
    CacheScene scene(c);
    ASSERT_EQ(run_scene(scene, workspace, 1), "");
    const std::vector<double> together = scene.results(b);
    keep_sequence(scene, b);
    ASSERT_EQ(run_scene(scene, workspace, 2), "");
    EXPECT_EQ(scene.results(b), together) << b;
  }
}

// More than 64 rows: warpgroups with one block or two, of which some or all may be missing, in one tile and in two. A
// plan takes large tiles only if there are many; most of these have almost nothing to do.
TEST_F(FakeCache, LargeTilesOfRowsAreMultipliedByWarpgroups) {
  gpus.on_launch = run_cache_kernel;
  DeviceBuffer workspace(16);
  struct Shape {
    int64_t dim_qk, dim_v;
    bool options, two_blocks;
  };
  for (const Shape& shape : {Shape{128, 128, false, false}, Shape{128, 128, false, true}, Shape{64, 64, true, false},
                             Shape{64, 64, true, true}, Shape{32, 96, false, false}, Shape{96, 32, false, true}}) {
    CacheCase c{.dtype = DType::bf16,
                .dim_qk = shape.dim_qk,
                .dim_v = shape.dim_v,
                .heads_k = 2,
                .group = 4,
                .page_size = 16,
                .len_q = {17, 1, 32, 0, 30},
                .rows = {300, 90, 200, 64, 5},
                .len_new = {17, 1, 33, 7, 40},
                .room = 400,
                .window_left = shape.options ? -1 : 90,
                .window_right = 0,
                .softcap = shape.options ? 20.0 : 0.0,
                .alibi = shape.options};
    if (shape.two_blocks)
      c.group = 5, c.len_q = {33, 1, 64, 17, 50}, c.len_new = {33, 1, 64, 17, 50}, c.window_left = -1;
    while (c.len_q.size() < 33) c.len_q.push_back(1), c.rows.push_back(3), c.len_new.push_back(1);
    CacheScene scene(c);
    const cuda::KvPlan plan = plan_of(scene);
    ASSERT_EQ(plan.tile_q, shape.two_blocks ? 256 : 128);
    EXPECT_EQ(run_scene(scene, workspace, 5), "") << shape.dim_qk << " " << shape.two_blocks;
  }
}

// Another tile follows the last columns of keys. It must not be cleared for values that no query sees.
TEST_F(FakeCache, ValuesInTheLastColumnsOfKeys) {
  gpus.on_launch = run_cache_kernel;
  DeviceBuffer workspace(16);
  const CacheCase c{.dim_qk = 64,
                    .dim_v = 40,
                    .v_column = 16,
                    .v_in_k = true,
                    .page_size = 16,
                    .len_q = {1, 1},
                    .rows = {300, 90},
                    .len_new = {1, 0},
                    .room = 400};
  CacheScene scene(c);
  EXPECT_EQ(run_scene(scene, workspace, 4), "");
}

// A graph replays a call with the lengths that the tensors hold at that time.
TEST_F(FakeCache, ParamsThatWereCapturedServeOtherLengths) {
  static Sm90KvParams params;  // large enough for the params of both kernels
  static kernel_emulator::Grid grid;
  static unsigned threads = 0, shared = 0;
  gpus.on_launch = [](const FakeLaunch& l) {
    std::memcpy(static_cast<void*>(&params), l.params, l.params_size != 0 ? l.params_size : sizeof params);
    grid = grid_of(l), threads = l.threads, shared = l.shared_bytes;
  };
  CacheCase c{.heads_k = 1, .group = 8, .len_q = {1, 1}, .rows = {40, 700}, .room = 900, .num_splits = 4};
  CacheScene scene(c);
  const std::vector<int> config = ints_of(config_of(plan_of(scene)));
  const DeviceBuffer workspace(workspace_size(scene.attention, scene.cache));
  flash_attention_with_cache(scene.attention, scene.cache,
                             {.workspace = workspace.data(), .workspace_size = workspace.bytes()});
  const auto replay = [&] {
    return kernel_emulator::run_cache_kernel(config.data(), config.size(), &params, grid, static_cast<int>(threads),
                                             shared, 3);
  };
  ASSERT_EQ(replay(), "");
  ASSERT_EQ(scene.fault(), "");
  const std::vector<double> first = scene.results(0);
  scene.set_rows({0, 0});
  ASSERT_EQ(replay(), "");
  for (const double x : scene.read_results(0)) EXPECT_TRUE(x == 0 || x == -kInf) << x;
  scene.set_rows(c.rows);
  ASSERT_EQ(replay(), "");
  ASSERT_EQ(scene.fault(), "");
  EXPECT_EQ(scene.results(0), first);
}

// Plans have short splits only with more row tiles than a test has time for, so the test adds some to the params of a
// small call.
TEST_F(FakeCache, ShortSplitsAreAddedUpLikeAllOthers) {
  static int64_t ctas = 0;
  gpus.on_launch = [](const FakeLaunch& l) {
    Sm90KvParams params;
    std::memcpy(static_cast<void*>(&params), l.params, sizeof params);
    params.cache.base_splits = 2, params.cache.min_tiles_per_split = 2, params.cache.short_splits = 3;
    params.prologue.splits = 2, params.prologue.tiles = 1;
    ctas = grid_of(l).ctas();
    running.fault = kernel_emulator::run_cache_kernel(running.config.data(), running.config.size(), &params, grid_of(l),
                                                      static_cast<int>(l.threads), l.shared_bytes, running.seed);
  };
  CacheScene scene({.heads_k = 1,
                    .group = 4,
                    .len_q = {1, 1, 1},
                    .rows = {40, 6200, 2100},
                    .len_new = {1, 0, 1},
                    .room = 6400,
                    .window_right = 0,
                    .num_splits = 5});
  if (!uses_tma(plan_of(scene))) GTEST_SKIP() << "only sm90 plans have short splits";
  running = {ints_of(config_of(plan_of(scene))), true, 7, 0, ""};
  const DeviceBuffer workspace(workspace_size(scene.attention, scene.cache));
  flash_attention_with_cache(scene.attention, scene.cache,
                             {.workspace = workspace.data(), .workspace_size = workspace.bytes()});
  EXPECT_EQ(ctas, 3 * 5);
  EXPECT_EQ(running.fault, "");
  EXPECT_EQ(scene.fault(), "");
}

TEST_F(FakeCache, ACachedCallAllocatesNothingAndACapturedOneWaitsForNothing) {
  for (const int64_t page_size : {0, 16}) {
    CacheScene scene({.page_size = page_size, .len_q = {1, 1}, .rows = {300, 90}, .len_new = {1, 1}, .room = 400});
    const Stream stream;
    const DeviceBuffer workspace(workspace_size(scene.attention, scene.cache));
    EXPECT_GT(workspace.bytes(), 1000u) << "nothing is split";
    const Execution execution{
        .stream = stream.handle(), .workspace = workspace.data(), .workspace_size = workspace.bytes()};
    flash_attention_with_cache(scene.attention, scene.cache, execution);
    const int64_t before = allocations;
    const int launches = gpus.launches, blocks = gpus.blocks;
    flash_attention_with_cache(scene.attention, scene.cache, execution);
    EXPECT_EQ(allocations, before);
    EXPECT_EQ(gpus.launches, launches + 1);
    Graph graph(stream);
    graph.begin();
    flash_attention_with_cache(scene.attention, scene.cache, execution);
    graph.end();
    EXPECT_EQ(gpus.launches, launches + 2);
    EXPECT_EQ(gpus.blocks, blocks);
  }
}

TEST_F(FakeCache, ExplainSaysWhatACallGets) {
  const CacheScene scene({.group = 8, .len_q = {1}, .rows = {300}, .room = 8192});
  const std::string text = explain(scene.attention, scene.cache);
  for (const char* part :
       {"attend_cache bf16", "backend    cuda", ":sm_90a:bf16,64,64,16,64", "splits     64", "132 SMs", "workspace  "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  CacheScene wide({.dim_qk = 600, .dim_v = 600, .len_q = {1}, .rows = {3}, .room = 4});
  EXPECT_NE(explain(wide.attention, wide.cache).find("not cuda   q: head size 600"), std::string::npos);
}

TEST_F(FakeCache, NothingToDoLaunchesNothing) {
  const int before = gpus.launches;
  CacheScene scene({.len_q = {0, 0}, .rows = {5, 0}, .room = 8});
  flash_attention_with_cache(scene.attention, scene.cache);
  EXPECT_EQ(gpus.launches, before);
}

// Merges two parts, one of them empty in some rows, in place and not.
struct MergeCase {
  DType dtype;
  int64_t dim;
  bool in_place, o_is_f32;
};
class FakeMerge : public FakeCache, public ::testing::WithParamInterface<MergeCase> {};

TEST_P(FakeMerge, EqualsTheDefinition) {
  const auto [dtype, dim, in_place, o_is_f32] = GetParam();
  gpus.on_launch = run_merge_kernel;
  constexpr int64_t kBatch = 2, kHeads = 3, kLen = 5;
  const auto make = [&](DType type, int64_t width, uint64_t seed) {
    MirroredTensor t(type, {kBatch, kHeads, kLen, width}, {0, 1, 2, 3});
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t n = 0; n < kBatch * kHeads * kLen; ++n) {
      std::vector<double> row(static_cast<size_t>(width));
      for (double& x : row) x = normal(random);
      t.set_row({n / kLen / kHeads, n / kLen % kHeads, n % kLen, 0}, row);
    }
    return t;
  };
  MirroredTensor o_a = make(dtype, dim, 1), o_b = make(dtype, dim, 2);
  MirroredTensor lse_a = make(state_type(dtype), 1, 3), lse_b = make(state_type(dtype), 1, 4);
  const std::vector<double> nothing{-kInf}, nan(static_cast<size_t>(dim), kNan);
  lse_a.set_row({0, 0, 1, 0}, nothing), o_a.set_row({0, 0, 1, 0}, nan);
  lse_b.set_row({1, 2, 0, 0}, nothing), o_b.set_row({1, 2, 0, 0}, nan);
  for (MirroredTensor* t : {&lse_a, &lse_b}) t->set_row({1, 1, 4, 0}, nothing);
  for (MirroredTensor* t : {&o_a, &o_b, &lse_a, &lse_b}) t->write();
  MirroredTensor o(o_is_f32 ? DType::f32 : dtype, {kBatch, kHeads, kLen, dim}, {0, 1, 2, 3});
  MirroredTensor lse(state_type(dtype), {kBatch, kHeads, kLen, 1}, {0, 1, 2, 3});
  const auto flat = [](Tensor t) { return t.rank = 3, t; };
  MergeTensors tensors{.o_a = o_a.view,
                       .lse_a = flat(lse_a.view),
                       .o_b = o_b.view,
                       .lse_b = flat(lse_b.view),
                       .o = in_place ? o_a.view : o.view,
                       .lse = flat(in_place ? lse_b.view : lse.view)};
  const cuda::MergePlan plan = cuda::plan_merge(describe(to_c(tensors), Memory{0}), cuda::device(0).arch);
  running = {ints_of(plan.launch.kernel.as<MergeConfig>()), false, 5, 0, ""};
  merge_states(tensors);
  ASSERT_EQ(running.fault, "");
  ASSERT_EQ(running.launches, 1);
  MirroredTensor &o_out = in_place ? o_a : o, &lse_out = in_place ? lse_b : lse;
  MirroredTensor new_o = make(o_out.view.dtype, dim, 9), new_lse = make(lse_out.view.dtype, 1, 9);
  new_o.host = o_out.buffer.read(), new_lse.host = lse_out.buffer.read();
  const double limit = dtype == DType::bf16 ? 1e-2 : dtype == DType::f32 ? 1e-6 : 1e-13;
  for (int64_t n = 0; n < kBatch * kHeads * kLen; ++n) {
    const std::vector<int64_t> row{n / kLen / kHeads, n / kLen % kHeads, n % kLen, 0};
    const double a = lse_a.row(row, 1)[0], b = lse_b.row(row, 1)[0], top = std::max(a, b);
    const double part_a = a == -kInf ? 0 : std::exp(a - top), part_b = b == -kInf ? 0 : std::exp(b - top);
    const double sum = part_a + part_b, expected_lse = sum > 0 ? top + std::log(sum) : -kInf;
    const double actual_lse = new_lse.row(row, 1)[0];
    EXPECT_TRUE(actual_lse == expected_lse || std::abs(actual_lse - expected_lse) < 1e-6) << n << " " << actual_lse;
    const auto x = o_a.row(row, dim), y = o_b.row(row, dim), z = new_o.row(row, dim);
    for (size_t d = 0; d < z.size(); ++d) {
      const double expected = sum > 0 ? ((part_a > 0 ? part_a * x[d] : 0) + (part_b > 0 ? part_b * y[d] : 0)) / sum : 0;
      EXPECT_NEAR(z[d], expected, limit * (1 + std::abs(expected))) << n << ", " << d;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Types, FakeMerge,
    ::testing::Values(MergeCase{DType::bf16, 64, false, false}, MergeCase{DType::bf16, 61, true, false},
                      MergeCase{DType::f32, 7, true, false}, MergeCase{DType::f32, 300, false, true},
                      MergeCase{DType::bf16, 50, false, true}, MergeCase{DType::f64, 32, true, false}));

}  // namespace
}  // namespace cuflash::test
