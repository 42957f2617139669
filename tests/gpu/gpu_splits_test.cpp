// Forward calls whose CTAs share the keys of a query tile, or take tiles from a list: against the same calls without a
// workspace, which do neither.
#include <cmath>
#include <cstring>

#include "tests/shared/gpu_memory.h"

namespace cuflash::test {
namespace {

std::vector<float> floats(const DeviceTensor& t) {
  const std::vector<std::byte> bytes = t.memory.read();
  std::vector<float> values(bytes.size() / size_of(t.view.dtype));
  for (size_t n = 0; n < values.size(); ++n) {
    if (t.view.dtype == DType::f32) {
      std::memcpy(&values[n], bytes.data() + 4 * n, 4);
      continue;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * n, 2);
    const uint32_t word = uint32_t{bits} << 16;  // bf16
    std::memcpy(&values[n], &word, 4);
  }
  return values;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float tolerance, const char* name) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t n = 0; n < a.size(); ++n) {
    const bool same = a[n] == b[n] || (std::isnan(a[n]) && std::isnan(b[n]));
    if (!same && !(std::fabs(a[n] - b[n]) <= tolerance * (1 + std::fabs(a[n])))) {
      ADD_FAILURE() << name << " element " << n << ": " << a[n] << " and " << b[n];
      return;
    }
  }
}

struct Forward {
  std::vector<float> o, lse;
  std::vector<std::vector<std::byte>> bits;
};
Forward forward(DeviceProblem& p, const Stream& stream, bool workspace) {
  for (const DeviceTensor* t : {&p.o, &p.lse})
    t->memory.write(std::vector<unsigned char>(t->memory.bytes(), 0xff).data(), t->memory.bytes());
  if (workspace) p.take_workspace();
  else p.execution.workspace = nullptr, p.execution.workspace_size = 0;
  p.forward();
  stream.wait();
  return {floats(p.o), floats(p.lse), {p.o.memory.read(), p.lse.memory.read()}};
}

void expect_same_as_unsplit(DeviceProblem& p, const Stream& stream) {
  const Forward split = forward(p, stream, true), again = forward(p, stream, true), whole = forward(p, stream, false);
  EXPECT_EQ(split.bits, again.bits) << "of a second call";
  expect_near(split.o, whole.o, 0.02f, "o");
  expect_near(split.lse, whole.lse, 1e-4f, "lse");
}

bool needs_workspace(const DeviceProblem& p) {
  return workspace_size(p.attention, ForwardOutputs{.o = p.o.view, .lse = p.lse.view}, p.execution) != 0;
}

TEST(Splits, FewQueriesGiveTheResultOfOneSplit) {
  const Stream stream;
  constexpr int64_t dim = 128;
  for (const int64_t len_q : {1, 17, 64, 96, 130, 300})
    for (const int variant : {0, 1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << "Sq=" << len_q << " variant " << variant);
      Inputs in = dense({.heads_q = variant == 2 ? 8 : 2,
                         .heads_k = 2,
                         .len_q = len_q,
                         .len_k = 5000,
                         .dim = dim,
                         .dim_v = dim,
                         .dtype = DType::bf16});
      in.attention.causal = variant == 1;
      if (variant == 3) in.attention.window_left = 700, in.attention.window_right = 300;
      DeviceProblem p(in, stream);
      EXPECT_TRUE(needs_workspace(p));
      expect_same_as_unsplit(p, stream);
    }
}

TEST(Splits, EveryOptionGivesTheResultOfOneSplit) {
  const Stream stream;
  const DeviceTensor slopes = copy_of(ConstTensor(contiguous(std::vector<float>{0.01f, 0.3f}.data(), 2)));
  const DeviceTensor sink = copy_of(ConstTensor(contiguous(std::vector<float>{1.5f, -3.0f}.data(), 2)));
  const auto check = [&](const char* name, auto change) {
    SCOPED_TRACE(name);
    Inputs in =
        dense({.heads_q = 2, .heads_k = 2, .len_q = 100, .len_k = 4000, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
    DeviceProblem p(in, stream);
    change(p.attention);
    EXPECT_TRUE(needs_workspace(p));
    expect_same_as_unsplit(p, stream);
  };
  check("softcap", [](Attention& a) { a.softcap = 5; });
  check("alibi", [&](Attention& a) { a.alibi_slopes = slopes.view; });
  check("sink", [&](Attention& a) { a.sink = sink.view; });
  check("dropout", [](Attention& a) { a.dropout_p = 0.3, a.dropout_seed = 11; });
  check("all", [&](Attention& a) {
    a.softcap = 5, a.alibi_slopes = slopes.view, a.sink = sink.view, a.causal = true;
    a.dropout_p = 0.3, a.dropout_seed = 11;
  });
}

TEST(Splits, LengthsOnTheDeviceGiveTheResultOfOneSplit) {
  const Stream stream;
  for (const int64_t len_q : {5, 130}) {
    DeviceProblem p(dense({.batch = 3,
                           .heads_q = 4,
                           .heads_k = 2,
                           .len_q = len_q,
                           .len_k = 3000,
                           .dim = 128,
                           .dim_v = 128,
                           .dtype = DType::bf16}),
                    stream);
    const DeviceTensor used_q = copy_of({static_cast<int32_t>(len_q), 0, 3}), used_k = copy_of({2999, 700, 0});
    p.attention.seqlens_k = used_k.view;
    expect_same_as_unsplit(p, stream);
    p.attention.seqlens_q = used_q.view, p.attention.causal = true;
    expect_same_as_unsplit(p, stream);
  }
  DeviceProblem p(
      packed({.heads_q = 4, .heads_k = 2, .len_q = 100, .len_k = 6000, .dim = 128, .dim_v = 128, .dtype = DType::bf16},
             {0, 60, 60, 90}, {0, 3000, 3500, 5990}),
      stream);
  const DeviceTensor cu_q = copy_of({0, 60, 60, 90}), cu_k = copy_of({0, 3000, 3500, 5990});
  p.attention.cu_seqlens_q = cu_q.view, p.attention.cu_seqlens_k = cu_k.view;
  p.attention.max_seqlen_q = 60, p.attention.max_seqlen_k = 3000;
  EXPECT_TRUE(needs_workspace(p));
  expect_same_as_unsplit(p, stream);
}

// A list changes who computes a tile, and when, but no bit of it.
TEST(Lists, GiveTheBitsOfTilesDealtInAdvance) {
  const Stream stream;
  const std::vector<int32_t> lengths{700, 1, 0, 300, 511, 128, 129, 650, 64, 257, 90, 5};
  std::vector<int32_t> cu{0};
  for (const int32_t n : lengths) cu.push_back(cu.back() + n);
  const int64_t total = cu.back() + 7;
  for (const int64_t dim : {64, 128})
    for (const int variant : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << "D=" << dim << " variant " << variant);
      Inputs in = packed(
          {.heads_q = 32, .heads_k = 8, .len_q = total, .len_k = total, .dim = dim, .dim_v = dim, .dtype = DType::bf16},
          cu, cu);
      DeviceProblem p(in, stream);
      const DeviceTensor on_device = copy_of(cu);
      p.attention.cu_seqlens_q = p.attention.cu_seqlens_k = on_device.view;
      p.attention.max_seqlen_q = p.attention.max_seqlen_k = 700;
      p.attention.causal = variant == 1;
      if (variant == 2) p.attention.window_left = 100;
      ASSERT_TRUE(needs_workspace(p));
      EXPECT_EQ(forward(p, stream, true).bits, forward(p, stream, false).bits);
    }
  DeviceProblem p(dense({.batch = 6,
                         .heads_q = 32,
                         .heads_k = 32,
                         .len_q = 600,
                         .len_k = 600,
                         .dim = 128,
                         .dim_v = 128,
                         .dtype = DType::bf16}),
                  stream);
  const DeviceTensor used = copy_of({600, 3, 0, 599, 300, 128});
  p.attention.seqlens_q = p.attention.seqlens_k = used.view;
  ASSERT_TRUE(needs_workspace(p));
  EXPECT_EQ(forward(p, stream, true).bits, forward(p, stream, false).bits);
}

TEST(Graphs, ReplayGivesTheBitsOfSplits) {
  const Stream stream;
  for (const int64_t len_q : {1, 100}) {
    DeviceProblem p(dense({.heads_q = 8,
                           .heads_k = 2,
                           .len_q = len_q,
                           .len_k = 4000,
                           .dim = 128,
                           .dim_v = 128,
                           .dtype = DType::bf16}),
                    stream);
    const auto expected = forward(p, stream, true).bits;
    Graph graph(stream);
    graph.begin();
    p.forward();
    graph.end();
    for (int n = 0; n < 3; ++n) {
      p.o.memory.write(std::vector<unsigned char>(p.o.memory.bytes(), 0xff).data(), p.o.memory.bytes());
      graph.replay();
      EXPECT_EQ((std::vector{p.o.memory.read(), p.lse.memory.read()}), expected) << "replay " << n;
    }
  }
}

}  // namespace
}  // namespace cuflash::test
