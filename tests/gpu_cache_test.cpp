// Attention over a KV cache on a GPU: the random calls that tests/fake_cuda_cache_test.cpp has the host compute, and what
// only a device can get wrong: CTAs that run at once, streams, replays, a workspace that holds anything.
#include <random>

#include "tests/cache_cases.h"
#include "tests/device.h"
#include "tests/property.h"

namespace cuflash::test {
namespace {

// With CUFLASH_TEST_DEVICE=cuda alone; where there is no GPU, device.h has all of these skipped and says why.
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

TEST_F(CacheOnGpu, RandomCallsEqualTheDefinition) {
  const Stream stream;
  for (uint64_t index = 0; index < static_cast<uint64_t>(scaled(300)); ++index) {
    const CacheCase c = random_cache_case(test_seed(), index);
    CacheScene scene(c);
    const DeviceBuffer workspace = garbage(workspace_size(scene.attention, scene.cache), index);
    call(scene, workspace, stream);
    stream.wait();
    ASSERT_EQ(scene.fault(), "") << "case " << index << ": " << describe(c);
  }
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

TEST_F(CacheOnGpu, ALongSequenceGivesTheSameBitsHoweverOften) {
  const Stream stream;
  for (const int32_t splits : {0, 1, 7, 60}) {
    CacheScene scene(long_case(splits));
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

// Many launches are on their way, and nobody waits between them: tickets that one leaves behind serve the next.
TEST_F(CacheOnGpu, CallsBehindEachOtherAndOnTwoStreamsDoNotDisturbEachOther) {
  const Stream one, two;
  CacheCase c = long_case(0);
  CacheScene first(c);
  c.seed = 2, c.rows = {3000};
  CacheScene second(c);
  const DeviceBuffer first_space = garbage(workspace_size(first.attention, first.cache), 1);
  const DeviceBuffer second_space = garbage(workspace_size(second.attention, second.cache), 2);
  for (int n = 0; n < 200; ++n) call(first, first_space, one), call(second, second_space, two);
  one.wait(), two.wait();
  EXPECT_EQ(first.fault(), "");
  EXPECT_EQ(second.fault(), "");
}

TEST_F(CacheOnGpu, AReplayedGraphReadsTheLengthsOfThen) {
  const Stream stream;
  CacheCase c = long_case(0);
  c.len_new.clear();
  CacheScene scene(c);
  const DeviceBuffer workspace = garbage(workspace_size(scene.attention, scene.cache), 3);
  Graph graph(stream);
  graph.begin();
  call(scene, workspace, stream);
  graph.end();
  graph.replay();
  ASSERT_EQ(scene.fault(), "");
  const std::vector<double> first = scene.results(0);
  const int32_t none = 0;
  scene.set_rows({none});
  graph.replay();
  for (const double x : scene.read_results(0)) ASSERT_TRUE(x == 0 || x == -kInf) << x;
  scene.set_rows(c.rows);
  graph.replay();
  EXPECT_EQ(scene.read_results(0), first);
}

}  // namespace
}  // namespace cuflash::test
