// CUDA graphs, streams, threads and contexts: how calls affect them, and that they do not affect results.
#include <thread>

#include "tests/shared/gpu_memory.h"

namespace cuflash::test {
namespace {

using Bits = std::vector<std::vector<std::byte>>;

Inputs large_inputs(DType dtype = DType::bf16, int64_t dim = 64) {
  Inputs in = dense({.batch = 2,
                     .heads_q = 12,
                     .heads_k = 4,
                     .len_q = 1024,
                     .len_k = 1024,
                     .dim = dim,
                     .dim_v = dim,
                     .dtype = dtype});
  in.attention.causal = true;
  in.attention.dropout_p = 0.1, in.attention.dropout_seed = 7;
  return in;
}

Bits call_both(const DeviceProblem& p, const Stream& stream) {
  p.forward(), p.backward();
  stream.wait();
  return p.results();
}

void capture_both(Graph& graph, const DeviceProblem& p) {
  graph.begin();
  p.forward(), p.backward();
  graph.end();
}

void spoil(const DeviceProblem& p) {
  for (const DeviceTensor* t : {&p.o, &p.lse, &p.dq, &p.dk, &p.dv})
    t->memory.write(std::vector<unsigned char>(t->memory.bytes(), 0xff).data(), t->memory.bytes());
}

TEST(Graphs, ReplayGivesTheBitsOfTheCalls) {
  const Stream stream;
  DeviceProblem p(large_inputs(), stream);
  p.take_workspace();
  const Bits expected = call_both(p, stream);
  Graph graph(stream);
  capture_both(graph, p);
  for (int n = 0; n < 3; ++n) {
    spoil(p);
    graph.replay();
    EXPECT_EQ(p.results(), expected) << "replay " << n;
  }
}

// The kernels are compiled or loaded while the stream is captured: no other test has these head sizes.
TEST(Graphs, FirstUseOfAKernelMayBeCaptured) {
  const Stream stream;
  DeviceProblem p(large_inputs(DType::f16, 24), stream);
  p.take_workspace();
  Graph graph(stream);
  capture_both(graph, p);
  graph.replay();
  const Bits replayed = p.results();
  spoil(p);
  EXPECT_EQ(call_both(p, stream), replayed);
}

TEST(Graphs, ReplayFollowsLengthsThatChanged) {
  const Stream stream;
  Inputs in = large_inputs();
  DeviceProblem p(in, stream);
  const DeviceTensor used_q = copy_of({1024, 700}), used_k = copy_of({1000, 3});
  p.attention.seqlens_q = used_q.view, p.attention.seqlens_k = used_k.view;
  p.take_workspace();
  Graph graph(stream);
  capture_both(graph, p);
  for (const auto& [lengths_q, lengths_k] :
       {std::pair<std::vector<int32_t>, std::vector<int32_t>>{{1024, 700}, {1000, 3}},
        {{0, 1}, {1, 1024}},
        {{511, 513}, {64, 0}}}) {
    used_q.memory.write(lengths_q.data(), 8), used_k.memory.write(lengths_k.data(), 8);
    const Bits expected = call_both(p, stream);
    spoil(p);
    graph.replay();
    EXPECT_EQ(p.results(), expected) << "lengths " << lengths_q[0] << " " << lengths_k[0];
  }
}

TEST(Graphs, ReplayFollowsPackedLengthsThatChanged) {
  const Stream stream;
  Inputs in =
      packed({.heads_q = 4, .heads_k = 2, .len_q = 600, .len_k = 700, .dim = 64, .dim_v = 64, .dtype = DType::f16},
             {0, 100, 600}, {0, 300, 700});
  DeviceProblem p(in, stream);
  const DeviceTensor cu_q = copy_of({0, 100, 600}), cu_k = copy_of({0, 300, 700});
  p.attention.cu_seqlens_q = cu_q.view, p.attention.cu_seqlens_k = cu_k.view;
  p.attention.max_seqlen_q = 600, p.attention.max_seqlen_k = 700;
  p.take_workspace();
  Graph graph(stream);
  capture_both(graph, p);
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{0, 100, 600}, {0, 0, 599}, {0, 333, 400}}) {
    cu_q.memory.write(cu.data(), 12), cu_k.memory.write(cu.data(), 12);
    spoil(p);  // neither writes rows after the last sequence
    const Bits expected = call_both(p, stream);
    spoil(p);
    graph.replay();
    EXPECT_EQ(p.results(), expected) << "rows " << cu[2];
  }
}

TEST(Graphs, SeveralShareOneWorkspace) {
  const Stream stream;
  DeviceProblem a(large_inputs(), stream), b(large_inputs(DType::f16), stream);
  a.take_workspace(), b.take_workspace();
  const Bits expected_a = call_both(a, stream), expected_b = call_both(b, stream);
  b.execution.workspace = a.execution.workspace, b.execution.workspace_size = a.execution.workspace_size;
  Graph graph_a(stream), graph_b(stream);
  capture_both(graph_a, a), capture_both(graph_b, b);
  for (int n = 0; n < 3; ++n) {
    spoil(a), spoil(b);
    graph_b.replay(), graph_a.replay();
    EXPECT_EQ(a.results(), expected_a);
    EXPECT_EQ(b.results(), expected_b);
  }
}

TEST(Graphs, WorkspaceMayComeFromThePool) {
  const Stream stream;
  DeviceProblem p(large_inputs(), stream);
  p.take_workspace();
  const Bits expected = call_both(p, stream);
  p.execution.workspace = nullptr, p.execution.workspace_size = 0, p.execution.workspace_from_pool = true;
  EXPECT_EQ(call_both(p, stream), expected);
  Graph graph(stream);
  capture_both(graph, p);
  for (int n = 0; n < 2; ++n) {
    spoil(p);
    graph.replay();
    EXPECT_EQ(p.results(), expected);
  }
}

// A call that must wait for the stream is refused, and the capture continues.
TEST(Graphs, WaitingOptionsAreRefusedDuringCapture) {
  const Stream stream;
  DeviceProblem p(large_inputs(), stream);
  TileStats stats{};
  p.execution.tile_stats = &stats;
  p.take_workspace();
  const auto refused = [&](const Execution& execution, const char* argument) {
    try {
      flash_attention_forward(p.attention, {.o = p.o.view}, execution);
      ADD_FAILURE() << argument << " was accepted";
    } catch (const FlashAttentionError& error) {
      EXPECT_EQ(error.status(), CUFLASH_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(error.what()).rfind(std::string(argument) + ":", 0), 0u) << error.what();
    }
  };
  Graph graph(stream);
  graph.begin();
  refused(p.execution, "tile_stats");
  p.execution.tile_stats = nullptr, p.execution.check_lengths = true;
  refused(p.execution, "check_lengths");
  p.execution.check_lengths = false;
  p.forward();
  graph.end();
  graph.replay();
}

// Threads with their own streams and workspaces, concurrently, compared with one after the other.
TEST(Streams, ThreadsAtTheSameTimeGiveTheBitsOfSerialCalls) {
  constexpr size_t kThreads = 4;
  const Inputs in = large_inputs();
  const Stream serial;
  DeviceProblem alone(in, serial);
  alone.take_workspace();
  const Bits expected = call_both(alone, serial);
  std::vector<int> differing(kThreads, -1);
  std::vector<std::thread> threads;
  for (size_t n = 0; n < kThreads; ++n)
    threads.emplace_back([&, n] {
      const Stream stream;
      DeviceProblem p(in, stream);
      p.take_workspace();
      differing[n] = 0;
      for (int round = 0; round < 20; ++round) {
        spoil(p);
        for (int again = 0; again < 3; ++again) p.forward(), p.backward();
        stream.wait();
        differing[n] += p.results() != expected;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differing, std::vector<int>(kThreads, 0));
}

TEST(Streams, ThirtyDeterministicRunsGiveTheSameBits) {
  const Stream stream;
  for (DType dtype : kFloatTypes) {
    DeviceProblem p(large_inputs(dtype, 40), stream);
    p.take_workspace();
    const Bits first = call_both(p, stream);
    for (int n = 0; n < 30; ++n) ASSERT_EQ(call_both(p, stream), first) << name_of(dtype) << " run " << n;
  }
}

// A call uses the device of its tensors, whichever is current, and leaves the current device unchanged.
TEST(Contexts, AThreadWithoutAContextStaysWithout) {
  const Stream stream;
  DeviceProblem p(large_inputs(), stream);
  p.take_workspace();
  const Bits expected = call_both(p, stream);
  spoil(p);
  std::thread([&] {
    cuda::CUdevice device = -1;
    EXPECT_EQ(cuda::driver().cuCtxGetDevice(&device), cuda::CUDA_ERROR_INVALID_CONTEXT);
    p.forward(), p.backward();
    EXPECT_EQ(cuda::driver().cuCtxGetDevice(&device), cuda::CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  stream.wait();
  EXPECT_EQ(p.results(), expected);
}

}  // namespace
}  // namespace cuflash::test
