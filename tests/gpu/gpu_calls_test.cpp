// Calls with device memory: refusals, workspaces, lengths on the device.
#include <algorithm>

#include "tests/shared/gpu_memory.h"

namespace cuflash::test {
namespace {

template <class Call>
void expect_error(Call call, cuflash_status status, const std::string& argument,
                  const std::vector<std::string>& words = {}) {
  try {
    call();
    ADD_FAILURE() << "must be refused because of " << argument;
  } catch (const FlashAttentionError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.status(), status) << text;
    EXPECT_EQ(text.rfind(argument + ":", 0), 0u) << text;
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

bool untouched(const DeviceTensor& t) {
  const auto bytes = t.memory.read();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0xff}; });
}

struct Small {
  Stream stream;
  Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 70, .len_k = 90, .dim = 32, .dim_v = 32});
  DeviceProblem p{in, stream};
};

TEST(Places, EveryTensorInOtherMemoryIsRefusedByName) {
  Small s;
  s.p.take_workspace();
  const auto refused = [&](const char* name, auto change) {
    Attention a = s.p.attention;
    BackwardTensors t = s.p.tensors();
    change(a, t);
    expect_error([&] { flash_attention_backward(a, t, s.p.execution); }, CUFLASH_INVALID_ARGUMENT, name,
                 {"host memory", "CUDA device 0"});
  };
  std::vector<float> host(1 << 20);
  const std::vector<int32_t> lengths{10, 20};
  refused("k", [&](Attention& a, auto&) { a.k.data = host.data(); });
  refused("v", [&](Attention& a, auto&) { a.v.data = host.data(); });
  refused("sink", [&](Attention& a, auto&) { a.sink = contiguous(std::as_const(host).data(), 4); });
  refused("bias", [&](Attention& a, auto&) { a.bias = contiguous(std::as_const(host).data(), 1, 1, 1, 90); });
  refused("seqlens_k", [&](Attention& a, auto&) { a.seqlens_k = contiguous(lengths.data(), 2); });
  refused("o", [&](Attention&, BackwardTensors& t) { t.o.data = host.data(); });
  refused("lse", [&](Attention&, BackwardTensors& t) { t.lse.data = host.data(); });
  refused("dout", [&](Attention&, BackwardTensors& t) { t.dout.data = host.data(); });
  refused("dk", [&](Attention&, BackwardTensors& t) { t.dk.data = host.data(); });
  refused("k", [&](Attention& a, auto&) { a.q.data = host.data(); });  // q decides, and k is elsewhere
  EXPECT_TRUE(untouched(s.p.dq) && untouched(s.p.dk) && untouched(s.p.dv));
}

TEST(Places, AskingForCudaWithHostMemoryIsRefused) {
  Small s;
  Buffer o(s.in.dout.view());
  expect_error([&] { flash_attention_forward(s.in.attention, {.o = o.view()}, {.device = Device::cuda}); },
               CUFLASH_INVALID_ARGUMENT, "q", {"host memory", "device auto"});
}

TEST(Places, HostTensorsAreComputedOnTheCpuDespiteAGpu) {
  Small s;
  Buffer o(s.in.dout.view());
  const std::string text = explain(s.in.attention, ForwardOutputs{.o = o.view()});
  EXPECT_NE(text.find("backend    cpu"), std::string::npos) << text;
  flash_attention_forward(s.in.attention, {.o = o.view()});
  EXPECT_EQ(o.unwritten(), "");
}

TEST(Places, ExplainNamesTheDeviceAndTheKernel) {
  Small s;
  const std::string text = explain(s.p.attention, s.p.tensors(), s.p.execution);
  for (const char* words : {"backend    cuda", "device 0", "kernel     backward", "workspace  "})
    EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(Workspace, MissingTooSmallOrOnTheHostIsRefused) {
  Small s;
  const size_t needed = workspace_size(s.p.attention, s.p.tensors(), s.p.execution);
  ASSERT_GT(needed, 64u);
  const auto refused = [&](const std::vector<std::string>& words) {
    expect_error([&] { s.p.backward(); }, CUFLASH_INVALID_ARGUMENT, "workspace", words);
  };
  refused({std::to_string(needed), "workspace_from_pool", "cuflash_*_workspace_size"});
  s.p.take_workspace();
  s.p.execution.workspace_size = needed - 1;
  refused({std::to_string(needed), std::to_string(needed - 1)});
  alignas(64) static std::byte host[1 << 20];
  s.p.execution.workspace = host, s.p.execution.workspace_size = sizeof host;
  refused({"host memory"});
  EXPECT_TRUE(untouched(s.p.dq) && untouched(s.p.dk) && untouched(s.p.dv));
}

TEST(Workspace, ForwardNeedsNone) {
  Small s;
  EXPECT_EQ(workspace_size(s.p.attention, ForwardOutputs{.o = s.p.o.view}, s.p.execution), 0u);
  s.p.forward();
  s.stream.wait();
  EXPECT_FALSE(untouched(s.p.o));
}

// O(N): extra memory grows with the sequence, not with its square.
TEST(Workspace, GrowsLinearly) {
  const auto needed = [](int64_t length, bool deterministic) {
    const Stream stream;
    DeviceProblem p(dense({.heads_q = 4,
                           .heads_k = 2,
                           .len_q = length,
                           .len_k = length,
                           .dim = 64,
                           .dim_v = 64,
                           .dtype = DType::bf16}),
                    stream);
    p.execution.deterministic = deterministic;
    return workspace_size(p.attention, p.tensors(), p.execution);
  };
  for (bool deterministic : {false, true}) {
    const size_t one = needed(4096, deterministic), four = needed(16384, deterministic);
    EXPECT_LE(four, 4 * one + 4096);
    EXPECT_LE(four, size_t{16384} * 4 * (3 * 64 * 4 + 256)) << "a few f32 numbers a row and head size";
  }
}

TEST(Lengths, PackedTensorsNeedABound) {
  const Stream stream;
  Inputs in = packed({.len_q = 64, .len_k = 64}, {0, 30, 64}, {0, 30, 64});
  DeviceProblem p(in, stream);
  const DeviceTensor cu = copy_of({0, 30, 64});
  p.attention.cu_seqlens_q = p.attention.cu_seqlens_k = cu.view;
  expect_error([&] { p.forward(); }, CUFLASH_INVALID_ARGUMENT, "max_seqlen_q", {"device memory", "at least 1"});
  p.attention.max_seqlen_q = 34;
  expect_error([&] { p.forward(); }, CUFLASH_INVALID_ARGUMENT, "max_seqlen_k", {"device memory"});
}

TEST(Lengths, CheckedModeSaysWhatIsWrongWithThem) {
  const Stream stream;
  Inputs in = packed({.len_q = 64, .len_k = 64}, {0, 30, 64}, {0, 30, 64});
  DeviceProblem p(in, stream);
  const DeviceTensor good = copy_of({0, 30, 64});
  p.attention.cu_seqlens_q = p.attention.cu_seqlens_k = good.view;
  p.attention.max_seqlen_q = p.attention.max_seqlen_k = 40;
  p.execution.check_lengths = true;
  EXPECT_NO_THROW(p.forward());
  const auto refused = [&](const std::vector<int32_t>& cu, const char* argument, const char* words) {
    const DeviceTensor bad = copy_of(cu);
    p.attention.cu_seqlens_k = bad.view;
    expect_error([&] { p.forward(); }, CUFLASH_INVALID_ARGUMENT, argument, {words});
  };
  refused({1, 30, 64}, "cu_seqlens_k", "must start with 0");
  refused({0, 40, 30}, "cu_seqlens_k", "decreases");
  refused({0, 30, 65}, "cu_seqlens_k", "has only 64 rows");
  refused({0, 45, 64}, "max_seqlen_k", "45");

  DeviceProblem dense_problem(dense({.batch = 2, .len_q = 8, .len_k = 8}), stream);
  const DeviceTensor used = copy_of({8, 9});
  dense_problem.attention.seqlens_k = used.view, dense_problem.execution.check_lengths = true;
  expect_error([&] { dense_problem.forward(); }, CUFLASH_INVALID_ARGUMENT, "seqlens_k", {"entry 1 is 9"});
}

// A normal call does not check lengths; kernels clamp them to the tensors. Nothing may fault, and the device must be usable
// afterwards.
TEST(Lengths, UncheckedOnesNeverReachBeyondTheTensors) {
  const Stream stream;
  Inputs in =
      packed({.heads_q = 2, .heads_k = 1, .len_q = 64, .len_k = 64, .dim = 40, .dim_v = 40}, {0, 30, 64}, {0, 30, 64});
  DeviceProblem p(in, stream);
  p.attention.max_seqlen_q = p.attention.max_seqlen_k = 64;
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{0, 30, 1 << 30},
                                         {-5, 70, 90},
                                         {1 << 30, 5, 2},
                                         {0, -1000000, 64},
                                         {-(1 << 30), 1 << 30, -1}}) {
    const DeviceTensor bad = copy_of(cu);
    p.attention.cu_seqlens_q = p.attention.cu_seqlens_k = bad.view;
    p.take_workspace();
    p.forward(), p.backward();
    EXPECT_NO_THROW(stream.wait());
  }
  DeviceProblem padded(dense({.batch = 3, .heads_q = 2, .heads_k = 1, .len_q = 64, .len_k = 64}), stream);
  const DeviceTensor used = copy_of({1 << 30, -7, 65});
  padded.attention.seqlens_q = padded.attention.seqlens_k = used.view;
  padded.take_workspace();
  padded.forward(), padded.backward();
  EXPECT_NO_THROW(stream.wait());
}

TEST(Limits, HeadSizesBeyond256AreUnsupportedInASentence) {
  const Stream stream;
  DeviceProblem p(dense({.len_q = 8, .len_k = 8, .dim = 257, .dim_v = 8}), stream);
  expect_error([&] { p.forward(); }, CUFLASH_UNSUPPORTED, "q", {"257", "256"});
  DeviceProblem wide(dense({.len_q = 8, .len_k = 8, .dim = 8, .dim_v = 300}), stream);
  expect_error([&] { wide.forward(); }, CUFLASH_UNSUPPORTED, "v", {"300", "256"});
}

}  // namespace
}  // namespace cuflash::test
