// The kernel that summarizes a mask, and the portable forward kernel that reads the summary, on the host.
#include <algorithm>

#include "check/cases/random.h"
#include "cpu/tile/summarize_mask.h"
#include "cuda/families/registry.h"
#include "cuda/families/summarize_mask.h"
#include "problem/describe.h"
#include "tests/cuda/kernel_emulator/dense_kernels.h"
#include "tests/shared/guarded_bytes.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

using check::Random;

std::string run(const cuda::Launch& launch, const cuda::KernelParams& params, uint64_t seed) {
  return kernel_emulator::run_dense_kernel(launch.kernel.type->name, launch.kernel.config.data(),
                                           launch.kernel.type->config_ints, params.data(), launch.ctas(),
                                           launch.threads, static_cast<size_t>(launch.shared_bytes), seed);
}

std::string summarize(const ConstRows& mask, const MaskShape& shape, const MaskSummary& summary,
                      const cuda::NeededKeys& needed = {}) {
  const cuda::Launch launch = cuda::plan_mask_summary(mask, shape, cuda::arch_named("sm_90"));
  cuda::KernelParams params;
  params.set([&] { return cuda::mask_summary_params(mask, shape, summary, needed); });
  return run(launch, params, 5);
}

// Every word that the kernel writes is the one that the CPU writes. Masks end where memory does.
TEST(SummarizeMaskKernel, EqualsTheCpu) {
  struct Scene {
    MaskShape shape;
    int64_t gap;
  };
  for (const auto& [s, gap] : {Scene{{2, 2, 40, 528}, 0}, Scene{{1, 1, 17, 600}, 8}, Scene{{1, 3, 33, 100}, 3},
                               Scene{{2, 1, 1, 1030}, 0}, Scene{{1, 1, 16, 1}, 0}}) {
    SCOPED_TRACE(::testing::Message() << s << " gap " << gap);
    const int64_t row = s.keys + gap, rows = s.batch * s.heads * s.rows;
    const GuardedBytes bytes(static_cast<size_t>((rows - 1) * row + s.keys));
    Random random(3);
    for (size_t n = 0; n < bytes.size(); ++n) bytes.data()[n] = random.below(50) < 45 ? static_cast<uint8_t>(1 + n) : 0;
    std::fill_n(bytes.data(), std::min<size_t>(bytes.size(), 300), uint8_t{7});
    const ConstRows mask{bytes.data(), DType::boolean, s.heads * s.rows * row, s.rows * row, row};
    const GuardedBytes made(workspace_bytes(mask_summary_bytes(s))), expected(made.size());
    std::fill_n(made.data(), made.size(), uint8_t{0}), std::fill_n(expected.data(), made.size(), uint8_t{0});
    cpu::summarize_mask({{}, mask, s, mask_summary_at(s, expected.data())}, Execution{.num_threads = 1});
    ASSERT_EQ(summarize(mask, s, mask_summary_at(s, made.data())), "");
    EXPECT_TRUE(std::equal(made.data(), made.data() + made.size(), expected.data()));
  }
}

// A call that makes its own summary reads only the blocks that its window leaves. The others show nothing and hide
// nothing.
TEST(SummarizeMaskKernel, LeavesOutWhatNoQueryNeeds) {
  const MaskShape shape{1, 1, 100, 600};
  const cuda::NeededKeys needed{-40, 1};
  for (const int64_t gap : {0, 8}) {  // rows on 16 bytes, and others
    const std::vector<uint8_t> bytes(static_cast<size_t>(100 * (600 + gap)), 1);
    const ConstRows mask{bytes.data(), DType::boolean, 0, 0, 600 + gap};
    std::vector<unsigned> words(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
    const MaskSummary summary = mask_summary_at(shape, words.data());
    ASSERT_EQ(summarize(mask, shape, summary, needed), "");
    const MaskOfHead m = mask_of_head(summary, 0, 0);
    for (int row = 0; row < 7; ++row)
      for (int block = 0; block < 38; ++block) {
        const int i = 16 * row, j = 16 * block;
        const bool is_needed = j < i + 15 + needed.high && j + 16 > i + needed.low;
        EXPECT_EQ(mask_visibility(m, i, 16, j, 16), is_needed ? MaskVisibility::all : MaskVisibility::none)
            << i << " " << j;
        const unsigned any = m.blocks[row * kMaskPlanes * m.spans + block / 32] >> block % 32 & 1;
        EXPECT_EQ(any != 0, is_needed) << i << " " << j;
      }
    for (int i = 0; i < 100; ++i)
      for (int64_t j = std::max<int64_t>(0, i + needed.low); j < i + needed.high; ++j)
        EXPECT_TRUE((mask_row(m, i)[j / 32] >> j % 32 & 1) != 0) << i << " " << j;
  }
}

using Shown = bool (*)(int64_t i, int64_t j, Random& random);
struct Pattern {
  const char* name;
  Shown shown;
};
const Pattern kPatterns[] = {
    {"documents", [](int64_t i, int64_t j, Random&) { return i / 70 == j / 70; }},
    {"random", [](int64_t, int64_t, Random& random) { return random.below(10) < 7; }},
    {"one pair", [](int64_t i, int64_t j, Random&) { return i == 70 && j == 130; }},
    {"nothing", [](int64_t, int64_t, Random&) { return false; }},
    {"everything", [](int64_t, int64_t, Random&) { return true; }},
    {"second half", [](int64_t, int64_t j, Random&) { return j >= 64 && j < 192; }},
};

// Adds softcap, dropout and ALiBi to the mask, for two heads.
void add_options(Attention& a) {
  static const float slopes[] = {0.02f, 0.3f};
  a.softcap = 20, a.dropout_p = 0.3, a.dropout_seed = 7;
  a.alibi_slopes = contiguous(&slopes[0], DType::f32, 2);
}

// Statistics, O and LSE are those of the CPU backend, which the oracle judges; the tiles are counted pair by pair.
void expect_forward(const Pattern& pattern, DType dtype, int64_t dim, bool causal, bool several_options,
                    int64_t queries = 130, int64_t keys = 200) {
  SCOPED_TRACE(::testing::Message() << pattern.name << " causal " << causal << " D=" << dim);
  Inputs in =
      dense({.heads_q = 2, .heads_k = 1, .len_q = queries, .len_k = keys, .dim = dim, .dim_v = dim, .dtype = dtype});
  std::vector<uint8_t> mask(static_cast<size_t>(queries * keys));
  Random random(9);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) mask[static_cast<size_t>(i * keys + j)] = pattern.shown(i, j, random);
  in.attention.causal = causal;
  in.attention.mask = contiguous(std::as_const(mask).data(), DType::boolean, 1, 1, queries, keys);
  if (several_options) add_options(in.attention);
  Buffer expected(in.dout.view()), lse(contiguous<void>(nullptr, DType::f32, 1, 2, queries)), o(in.dout.view()),
      own_lse(lse.view());
  flash_attention_forward(in.attention, {.o = expected.view(), .lse = lse.view()});

  Snapshot copies;
  ForwardProblem p = describe(detail::to_c(in.attention),
                              detail::to_c(ForwardOutputs{.o = o.view(), .lse = own_lse.view()}), Memory{0}, copies);
  const MaskShape shape = mask_shape_of(p);
  std::vector<unsigned> summary(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
  p.summary = mask_summary_at(shape, summary.data());
  ASSERT_EQ(summarize(p.mask, shape, p.summary), "");
  const cuda::ForwardPlan plan = cuda::plan_forward(p, cuda::arch_named("sm_90"), cuda::KernelPreference::portable);
  uint64_t counts[3] = {};
  cuda::KernelParams params;
  plan.family->params(p, plan, {1, nullptr, counts}, params);
  ASSERT_EQ(run(plan.launch, params, 11), "");

  const double tolerance = dtype == DType::f32 ? 1e-4 : 2e-2;
  const auto a = o.read(), b = expected.read(), c = own_lse.read(), d = lse.read();
  for (size_t n = 0; n < a.size(); ++n) ASSERT_NEAR(a[n], b[n], tolerance) << n;
  for (size_t n = 0; n < c.size(); ++n) {
    if (std::isinf(d[n])) ASSERT_EQ(c[n], d[n]) << n;
    else ASSERT_NEAR(c[n], d[n], tolerance) << n;
  }
  uint64_t counted[3] = {};
  for (int64_t i0 = 0; i0 < queries; i0 += plan.tile_q)
    for (int64_t j0 = 0; j0 < keys; j0 += plan.tile_k) {
      bool any = false, all = true, shows_any = false, shows_all = true;
      for (int64_t i = i0; i < std::min(i0 + plan.tile_q, queries); ++i)
        for (int64_t j = j0; j < std::min(j0 + plan.tile_k, keys); ++j) {
          const bool seen = !causal || j <= i + keys - queries, shown = mask[static_cast<size_t>(i * keys + j)] != 0;
          any |= seen, all &= seen, shows_any |= shown, shows_all &= shown;
        }
      const bool visited = any && shows_any;
      counted[0] += 2 * visited, counted[1] += 2 * (visited && !(all && shows_all)), counted[2] += 2 * !visited;
    }
  EXPECT_TRUE(std::equal(counts, counts + 3, counted))
      << counts[0] << " " << counts[1] << " " << counts[2] << ", counted " << counted[0] << " " << counted[1] << " "
      << counted[2];
}

// Gradients and statistics of all kernels of a backward call.
void expect_backward(const Pattern& pattern, bool causal, bool several_options, bool deterministic) {
  SCOPED_TRACE(::testing::Message() << pattern.name << " causal " << causal << " deterministic " << deterministic);
  constexpr int64_t kQueries = 100, kKeys = 150, kHeads = 2, kDim = 32;
  Inputs in = dense({.heads_q = kHeads, .heads_k = 1, .len_q = kQueries, .len_k = kKeys, .dim = kDim, .dim_v = kDim});
  std::vector<uint8_t> mask(kQueries * kKeys);
  Random random(9);
  for (int64_t i = 0; i < kQueries; ++i)
    for (int64_t j = 0; j < kKeys; ++j) mask[static_cast<size_t>(i * kKeys + j)] = pattern.shown(i, j, random);
  in.attention.causal = causal;
  in.attention.mask = contiguous(std::as_const(mask).data(), DType::boolean, 1, 1, kQueries, kKeys);
  Buffer bias(contiguous<void>(nullptr, DType::f32, 1, kHeads, kQueries, kKeys)), dbias(bias.view()),
      own_dbias(bias.view());
  fill_normal(bias.view(), 4);
  if (several_options) add_options(in.attention), in.attention.bias = bias.view();
  Buffer o(in.dout.view()), lse(contiguous<void>(nullptr, DType::f32, 1, kHeads, kQueries));
  Buffer dq(in.q.view()), dk(in.k.view()), dv(in.v.view()), own_dq(in.q.view()), own_dk(in.k.view()),
      own_dv(in.v.view());
  flash_attention_forward(in.attention, {.o = o.view(), .lse = lse.view()});
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = in.dout.view()};
  tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
  if (several_options) tensors.dbias = dbias.view();
  flash_attention_backward(in.attention, tensors);
  tensors.dq = own_dq.view(), tensors.dk = own_dk.view(), tensors.dv = own_dv.view();
  if (several_options) tensors.dbias = own_dbias.view();

  Snapshot copies;
  BackwardProblem p = describe(detail::to_c(in.attention), detail::to_c(tensors), Memory{0}, copies);
  const MaskShape shape = mask_shape_of(p);
  std::vector<unsigned> summary(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
  p.summary = mask_summary_at(shape, summary.data());
  ASSERT_EQ(summarize(p.mask, shape, p.summary), "");
  const cuda::BackwardPlan plan = cuda::plan_backward(p, cuda::arch_named("sm_90"),
                                                      deterministic ? cuda::Reproducible::yes : cuda::Reproducible::no,
                                                      cuda::KernelPreference::portable);
  std::vector<double> workspace(plan.workspace.size / sizeof(double) + 1, kNan);
  uint64_t counts[3] = {};
  cuda::KernelParams params;
  plan.family->params(p, plan, {1, workspace.data(), counts}, params);
  for (const cuda::Launch* launch : plan.launches())
    if (launch->grid_x != 0) {
      ASSERT_EQ(run(*launch, params, 11), "");
    }

  const auto expect_near = [](const char* name, const Buffer& made, const Buffer& expected) {
    const auto a = made.read(), b = expected.read();
    for (size_t n = 0; n < a.size(); ++n) ASSERT_NEAR(a[n], b[n], 2e-4) << name << " " << n;
  };
  expect_near("dq", own_dq, dq), expect_near("dk", own_dk, dk), expect_near("dv", own_dv, dv);
  if (several_options) expect_near("dbias", own_dbias, dbias);
  uint64_t counted[3] = {};
  for (int64_t i0 = 0; i0 < kQueries; i0 += plan.tile_q)
    for (int64_t j0 = 0; j0 < kKeys; j0 += plan.tile_k) {
      bool any = false, all = true, shows_any = false, shows_all = true;
      for (int64_t i = i0; i < std::min(i0 + plan.tile_q, kQueries); ++i)
        for (int64_t j = j0; j < std::min(j0 + plan.tile_k, kKeys); ++j) {
          const bool seen = !causal || j <= i + kKeys - kQueries, shown = mask[static_cast<size_t>(i * kKeys + j)] != 0;
          any |= seen, all &= seen, shows_any |= shown, shows_all &= shown;
        }
      const bool visited = any && shows_any;
      counted[0] += kHeads * visited, counted[1] += kHeads * (visited && !(all && shows_all));
      counted[2] += kHeads * !visited;
    }
  EXPECT_TRUE(std::equal(counts, counts + 3, counted))
      << counts[0] << " " << counts[1] << " " << counts[2] << ", counted " << counted[0] << " " << counted[1] << " "
      << counted[2];
}

TEST(MaskedBackwardKernels, EqualTheCpuAndCountTheirTiles) {
  for (const Pattern& pattern : kPatterns) expect_backward(pattern, false, false, false);
  expect_backward(kPatterns[0], true, false, false);
}
// dQ is added in the order of the visible key tiles: a wrong count would never end.
TEST(MaskedBackwardKernels, AddInOrder) {
  for (const Pattern& pattern : kPatterns) expect_backward(pattern, true, false, true);
}
TEST(MaskedBackwardKernels, WithSeveralOptions) {
  for (const Pattern& pattern : {kPatterns[0], kPatterns[2]}) expect_backward(pattern, true, true, true);
}

TEST(MaskedForwardKernel, EqualsTheCpuAndCountsItsTiles) {
  for (const Pattern& pattern : kPatterns)
    for (const bool causal : {false, true}) expect_forward(pattern, DType::f32, 32, causal, false);
}
TEST(MaskedForwardKernel, WithSeveralOptions) {
  for (const Pattern& pattern : kPatterns) expect_forward(pattern, DType::f32, 32, true, true);
}
// A walk judges 32 tiles at a time.
TEST(MaskedForwardKernel, FindsTilesFarAway) {
  const Pattern pattern{"last keys", [](int64_t, int64_t j, Random&) { return j / 70 == 0 || j >= 2120; }};
  expect_forward(pattern, DType::f32, 32, false, false, 64, 2200);
}
// Rows of the mask beyond the sequence show keys to no query: NaN in their values reaches nothing.
TEST(MaskedForwardKernel, RowsBeyondTheSequenceShowNothing) {
  constexpr int64_t kRows = 40, kKeys = 60, kUsed = 10, kSeen = 30;
  Inputs in = padded({.len_q = kRows, .len_k = kKeys, .dim = 32, .dim_v = 32}, {kUsed}, {kKeys});
  fill(narrow(in.v.view(), 2, kSeen, kKeys - kSeen), kNan);
  std::vector<uint8_t> mask(kRows * kKeys);
  for (int64_t n = 0; n < kRows * kKeys; ++n) mask[static_cast<size_t>(n)] = n / kKeys >= kUsed || n % kKeys < kSeen;
  in.attention.mask = contiguous(std::as_const(mask).data(), DType::boolean, 1, 1, kRows, kKeys);
  Buffer o(in.dout.view());
  Snapshot copies;
  ForwardProblem p =
      describe(detail::to_c(in.attention), detail::to_c(ForwardOutputs{.o = o.view()}), Memory{0}, copies);
  const MaskShape shape = mask_shape_of(p);
  std::vector<unsigned> summary(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
  p.summary = mask_summary_at(shape, summary.data());
  ASSERT_EQ(summarize(p.mask, shape, p.summary), "");
  const cuda::ForwardPlan plan = cuda::plan_forward(p, cuda::arch_named("sm_90"), cuda::KernelPreference::portable);
  cuda::KernelParams params;
  plan.family->params(p, plan, {1, nullptr, nullptr}, params);
  ASSERT_EQ(run(plan.launch, params, 11), "");
  for (const double x : o.read()) ASSERT_TRUE(std::isfinite(x));
}
TEST(MaskedForwardKernel, WithOneStage) { expect_forward(kPatterns[0], DType::bf16, 128, false, false); }

}  // namespace
}  // namespace cuflash::test
