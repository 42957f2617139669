// Attention over a KV cache on a GPU: the random calls of tests/cuda/kernels/fake_gpu_cache_test.cpp, and what only a device can get
// wrong: concurrent CTAs, streams, replays, a workspace with arbitrary content.
#include <algorithm>
#include <random>

#include "tests/cpu/kv/cache_cases.h"
#include "tests/properties/property.h"
#include "tests/shared/device.h"

namespace cuflash::test {
namespace {

// These tests run only with CUFLASH_TEST_DEVICE=cuda; without a GPU, device.h skips them and says why.
class CacheOnGpu : public testing::Test {
  void SetUp() override { ASSERT_TRUE(on_cuda()) << "these run on a GPU: set CUFLASH_TEST_DEVICE=cuda"; }
};

DeviceBuffer garbage(size_t bytes, uint64_t seed) {
  DeviceBuffer buffer(bytes);
  std::vector<unsigned char> values(bytes);
  std::mt19937_64 random(seed);
  for (unsigned char& x : values) x = static_cast<unsigned char>(random());
  buffer.write(values.data(), bytes);
  return buffer;
}

void call(const CacheScene& scene, const DeviceBuffer& workspace, const Stream& stream) {
  flash_attention_with_cache(
      scene.attention, scene.cache,
      {.stream = stream.handle(), .workspace = workspace.data(), .workspace_size = workspace.bytes()});
}

void expect_definition(CacheCase (&draw)(uint64_t seed, uint64_t index), int count) {
  const Stream stream;
  for (uint64_t index = 0; index < static_cast<uint64_t>(scaled(count)); ++index) {
    const CacheCase c = draw(test_seed(), index);
    CacheScene scene(c);
    const DeviceBuffer workspace = garbage(workspace_size(scene.attention, scene.cache), index);
    call(scene, workspace, stream);
    stream.wait();
    ASSERT_EQ(scene.fault(), "") << "case " << index << ": " << describe(c);
  }
}
TEST_F(CacheOnGpu, RandomCallsEqualTheDefinition) { expect_definition(random_cache_case, 300); }
TEST_F(CacheOnGpu, RandomCallsWithManyQueriesEqualTheDefinition) { expect_definition(random_prefill_case, 200); }

// Up to four launches per call, each of which overwrites what the last call's kernels have read from the workspace.
TEST_F(CacheOnGpu, CallsWithManyQueriesBehindEachOtherDoNotDisturbEachOther) {
  const Stream one, two;
  CacheCase c{.dim_qk = 128,
              .dim_v = 128,
              .heads_k = 4,
              .group = 4,
              .page_size = 64,
              .len_q = {300, 70, 150, 5},
              .rows = {700, 2000, 0, 30},
              .len_new = {300, 70, 150, 5},
              .room = 2070,
              .window_right = 0,
              .rotary = 64};
  CacheScene first(c);
  c.seed = 2, c.page_size = 0, c.rows = {0, 100, 1500, 700};
  CacheScene second(c);
  const DeviceBuffer first_space = garbage(workspace_size(first.attention, first.cache), 1);
  const DeviceBuffer second_space = garbage(workspace_size(second.attention, second.cache), 2);
  for (int n = 0; n < 50; ++n) call(first, first_space, one), call(second, second_space, two);
  one.wait(), two.wait();
  EXPECT_EQ(first.fault(), "");
  EXPECT_EQ(second.fault(), "");
}

// One sequence on the whole device: all multiprocessors have a part of each head's keys.
CacheCase long_case(int32_t num_splits) {
  return {.dim_qk = 128,
          .dim_v = 128,
          .heads_k = 2,
          .group = 4,
          .page_size = 16,
          .len_q = {1},
          .rows = {8191},
          .len_new = {1},
          .room = 8192,
          .window_right = 0,
          .num_splits = num_splits};
}

// The reduction of splits: by tickets or, if all of their CTAs are co-resident and nothing is appended, through flagged
// pairs.
enum class Reduction { by_tickets, by_exchange };
struct LongScene : CacheScene {
  explicit LongScene(CacheCase c, Reduction reduction)
      : CacheScene(reduction == Reduction::by_exchange ? nothing_new(c) : c) {
    if (reduction == Reduction::by_exchange) attention.seqlens_q = {};
  }
  static CacheCase nothing_new(CacheCase c) { return c.len_new.clear(), c; }
};

TEST_F(CacheOnGpu, ALongSequenceGivesTheSameBitsHoweverOften) {
  const Stream stream;
  struct Way {
    int32_t splits;
    Reduction reduction;
  };
  for (const auto [splits, reduction] :
       {Way{0, Reduction::by_tickets}, Way{0, Reduction::by_exchange}, Way{1, Reduction::by_tickets},
        Way{7, Reduction::by_tickets}, Way{60, Reduction::by_tickets}}) {
    LongScene scene(long_case(splits), reduction);
    const std::string text = explain(scene.attention, scene.cache);
    const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
    ASSERT_EQ(says("splits exchange their sums"), reduction == Reduction::by_exchange && says("sm90_kv")) << text;
    const DeviceBuffer workspace = garbage(workspace_size(scene.attention, scene.cache), 5);
    std::vector<double> first;
    for (int n = 0; n < 50; ++n) {
      call(scene, workspace, stream);
      stream.wait();
      if (n == 0) {
        ASSERT_EQ(scene.fault(), "") << splits << " splits";
        first = scene.results(0);
      }
      ASSERT_EQ(scene.read_results(0), first) << splits << " splits, call " << n;
    }
  }
}

// Many launches are in flight without a wait between them: the tickets that one leaves must serve the next.
TEST_F(CacheOnGpu, CallsBehindEachOtherAndOnTwoStreamsDoNotDisturbEachOther) {
  const Stream one, two;
  for (const Reduction reduction : {Reduction::by_tickets, Reduction::by_exchange}) {
    CacheCase c = long_case(0);
    LongScene first(c, reduction);
    c.seed = 2, c.rows = {3000};
    LongScene second(c, reduction);
    const DeviceBuffer first_space = garbage(workspace_size(first.attention, first.cache), 1);
    const DeviceBuffer second_space = garbage(workspace_size(second.attention, second.cache), 2);
    for (int n = 0; n < 200; ++n) call(first, first_space, one), call(second, second_space, two);
    one.wait(), two.wait();
    EXPECT_EQ(first.fault(), "");
    EXPECT_EQ(second.fault(), "");
  }
}

// A workspace that an earlier call has used holds garbage for the next call.
TEST_F(CacheOnGpu, CallsOfAllKindsShareAWorkspace) {
  const Stream stream;
  CacheCase c = long_case(0);
  LongScene tickets(c, Reduction::by_tickets), exchanges(c, Reduction::by_exchange);
  c.heads_k = 1, c.group = 13, c.rows = {5000}, c.seed = 2;
  LongScene other_exchange(c, Reduction::by_exchange);
  const LongScene* const scenes[] = {&tickets, &exchanges, &other_exchange};
  size_t bytes = 0;
  for (const LongScene* scene : scenes) bytes = std::max(bytes, workspace_size(scene->attention, scene->cache));
  const DeviceBuffer workspace = garbage(bytes, 4);
  std::mt19937_64 random(5);
  for (int n = 0; n < 300; ++n) call(*scenes[random() % std::size(scenes)], workspace, stream);
  for (const LongScene* scene : scenes) call(*scene, workspace, stream);
  stream.wait();
  EXPECT_EQ(tickets.fault(), "");
  EXPECT_EQ(exchanges.fault(), "");
  EXPECT_EQ(other_exchange.fault(), "");
}

// Calls in a graph start before the previous one has ended, and wait for it.
TEST_F(CacheOnGpu, AReplayedGraphReadsTheLengthsAtReplay) {
  const Stream stream;
  for (const Reduction reduction : {Reduction::by_tickets, Reduction::by_exchange}) {
    CacheCase c = long_case(0);
    c.len_new.clear();
    LongScene scene(c, reduction);
    const DeviceBuffer workspace = garbage(workspace_size(scene.attention, scene.cache), 3);
    Graph graph(stream);
    graph.begin();
    for (int n = 0; n < 5; ++n) call(scene, workspace, stream);
    graph.end();
    graph.replay();
    ASSERT_EQ(scene.fault(), "");
    const std::vector<double> first = scene.results(0);
    const int32_t none = 0;
    scene.set_rows({none});
    graph.replay();
    for (const double x : scene.read_results(0)) ASSERT_TRUE(x == 0 || x == -kInf) << x;
    scene.set_rows(c.rows);
    for (int n = 0; n < 50; ++n) graph.replay();
    EXPECT_EQ(scene.read_results(0), first);
  }
}

}  // namespace
}  // namespace cuflash::test
