// Every instruction set that this processor can run computes the same contract.
#include "cpu/isa/kernels.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "check/run/sweep.h"
#include "dtype.h"
#include "error.h"
#include "tests/properties/property.h"

namespace cuflash::cpu {
namespace {

class EveryIsa : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { force_isa(GetParam()); }
  void TearDown() override { force_isa(nullptr); }
};

TEST_P(EveryIsa, IsTheOneInUse) { EXPECT_STREQ(isa_name(), GetParam()); }

TEST_P(EveryIsa, EqualsTheOracle) {
  const check::SweepResult result = check::sweep(11, 0, static_cast<uint64_t>(test::scaled(1500)));
  for (const check::SweepFailure& failure : result.failures)
    ADD_FAILURE() << "CUFLASH_CPU_ISA=" << GetParam() << " " << failure.reproduction << ": " << failure.failure;
  EXPECT_EQ(result.failed, 0u);
}

// The instruction set that computes a problem of this type; 16-bit types may have their own.
std::string set_of(DType type, const std::string& in_use) {
  if (has_matrix_kernels(type)) return in_use == "amx_fp16" && type == DType::bf16 ? "amx" : in_use;
  if (in_use == "neon_bf16") return "neon";
  return in_use.starts_with("amx") ? "avx512" : in_use;
}

std::string kernel_line(const std::string& explanation) {
  const size_t begin = explanation.find("kernel     ");
  return explanation.substr(begin, explanation.find('\n', begin) - begin);
}

TEST_P(EveryIsa, ExplainNamesTheOneThatComputesTheProblem) {
  constexpr int64_t kHeads = 2, kLength = 128, kDim = 64, kTensors = 7;
  std::vector<double> memory(kTensors * kHeads * kLength * kDim);
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    int64_t tensors = 0;
    const auto rows = [&](int64_t length) {
      void* data = &memory[static_cast<size_t>(tensors++ * kHeads * kLength * kDim)];
      return contiguous(data, type, 1, kHeads, length, kDim);
    };
    const auto q = rows(kLength), k = rows(kLength), v = rows(kLength), o = rows(kLength), dout = rows(kLength),
               dq = rows(kLength);
    const Tensor lse = contiguous(rows(1).data, type == DType::f64 ? DType::f64 : DType::f32, 1, kHeads, kLength);
    Tensor one_row = q, one_result = o;
    one_row.shape[2] = one_result.shape[2] = 1;
    const Attention panels{.q = q, .k = k, .v = v}, one_query{.q = one_row, .k = k, .v = v};
    const std::string expected = join("kernel     ", set_of(type, GetParam()), ", ");
    // Only Arm has matrix instructions for the rows of a decode step.
    const std::string decodes = std::string(GetParam()).starts_with("amx") ? "kernel     avx512, " : expected;
    const std::string forward = explain(panels, ForwardOutputs{.o = o}),
                      backward = explain(panels, BackwardTensors{.o = o, .lse = lse, .dout = dout, .dq = dq}),
                      decode = explain(one_query, ForwardOutputs{.o = one_result});
    EXPECT_TRUE(kernel_line(forward).starts_with(expected)) << expected << forward;
    // Backward widens f16.
    const std::string differentiates =
        type == DType::f16 ? join("kernel     ", set_of(DType::f32, GetParam()), ", ") : expected;
    EXPECT_TRUE(kernel_line(backward).starts_with(differentiates)) << differentiates << backward;
    EXPECT_TRUE(kernel_line(decode).starts_with(decodes)) << decodes << decode;
  }
}

// A panel of scores and the running state of its rows, aligned as the kernels want it.
struct Scores {
  static constexpr int64_t kMaxKeys = 96, kMaxLanes = 64, kMaxDim = 4;
  alignas(64) float s[kMaxKeys * kMaxLanes];
  alignas(64) float m[kMaxLanes], l[kMaxLanes] = {}, o[kMaxDim * kMaxLanes], before[kMaxLanes] = {},
                                  after[kMaxLanes] = {}, shrink[kMaxLanes];
  alignas(64) Operand16 right[kMaxKeys * kMaxLanes] = {};

  Scores() {
    for (int64_t n = 0; n < kMaxKeys * kMaxLanes; ++n) s[n] = static_cast<float>(n * 7919 % 1009) / 100.0f;
    for (float& x : m) x = -std::numeric_limits<float>::infinity();
    for (float& x : o) x = 1;
  }
  RoundedSums<float> sums() { return {before, after}; }
};

TEST_P(EveryIsa, SoftmaxKeepsNanOfAnyPayload) {
  const Kernels<float>& kernels = cpu::kernels<float>();
  for (const uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0x7f800001u, 0xffffffffu, 0x7fc000ffu}) {
    auto panel = std::make_unique<Scores>();
    panel->s[3 * kernels.lanes + 2] = std::bit_cast<float>(bits);
    kernels.softmax(9, panel->s, 0.5f, panel->m, panel->l, panel->shrink);
    for (int64_t lane = 0; lane < kernels.lanes; ++lane) EXPECT_EQ(std::isnan(panel->l[lane]), lane == 2) << bits;
  }
}

// One pass and two passes round a weight to the same number or to neighbours. One pass may choose a lower reference than
// the maximum, for types with a small exponent: then its weights and sums are larger by the same factor.
void compare_passes(DType type) {
  if (!has_matrix_kernels(type) || !matrix_kernels(type).softmax_to_right)
    GTEST_SKIP() << "this instruction set computes softmax and rounds in two passes";
  const Kernels<float, Operand16>& k = matrix_kernels(type);
  std::vector<float> decisions(Scores::kMaxKeys * Scores::kMaxLanes + 16);
  float* keep = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(decisions.data()) + 63) / 64 * 64);
  for (int64_t n = 0; n < Scores::kMaxKeys * k.lanes; ++n) keep[n] = n % 3 ? 1.5f : 0.0f;
  constexpr float kScale = 0.5f;
  for (const auto& [keys, drops] : {std::pair<int64_t, bool>{1, false},
                                    {2, true},
                                    {3, false},
                                    {31, true},
                                    {31, false},
                                    {32, true},
                                    {33, false},
                                    {33, true},
                                    {96, false},
                                    {96, true}}) {
    SCOPED_TRACE(testing::Message() << keys << " keys, " << (drops ? "some dropped" : "all kept"));
    auto one = std::make_unique<Scores>(), two = std::make_unique<Scores>();
    for (const float added : {0.0f, 3.0f, -200.0f}) {  // a larger maximum, then weights of nearly 0
      auto scores = std::make_unique<Scores>();
      for (int64_t n = 0; n < keys * k.lanes; ++n) one->s[n] = two->s[n] = scores->s[n] + added;
      one->s[0] = two->s[0] = -std::numeric_limits<float>::infinity();
      const RoundedSums<float> sums = two->sums();
      k.softmax_to_right(keys, one->s, kScale, drops ? keep : nullptr, one->m, one->l, one->o, 2, one->right,
                         one->sums());
      const bool grew = k.softmax(keys, two->s, kScale, two->m, two->l, two->shrink);
      for (int64_t n = 0; n < 2 * k.lanes; ++n) {
        EXPECT_TRUE(grew || two->shrink[n % k.lanes] == 1.0f);
        two->o[n] *= two->shrink[n % k.lanes];
      }
      if (drops) k.drop(keys, two->s, keep);
      k.to_right(keys, two->s, two->right, &sums);
      const auto element = [&](const Operand16& x) {
        double value = 0;
        load_row(&x, type, 0, 1, &value);
        return value;
      };
      const double factor = type == DType::f16 ? std::exp(kScale * (two->m[1] - one->m[1])) : 1;
      EXPECT_LE(factor, 32768.0);
      for (int64_t n = 0; n < (keys + k.step - 1) / k.step * k.step * k.lanes; ++n) {
        const double two_passes = element(two->right[n]);
        EXPECT_NEAR(element(one->right[n]) / factor, two_passes,
                    type == DType::f16 ? 1e-3 * two_passes + 1e-7 : 8e-3 * two_passes)
            << n;
      }
      for (int64_t lane = 0; lane < k.lanes; ++lane) {
        if (type == DType::bf16 || std::isinf(two->m[lane])) EXPECT_EQ(one->m[lane], two->m[lane]);
        else EXPECT_NEAR(one->m[lane], two->m[lane] - std::log(32768.0) / kScale, 1e-3);
        EXPECT_NEAR(one->l[lane] / factor, two->l[lane], 1e-5 * two->l[lane]);
        EXPECT_NEAR(one->o[lane + k.lanes], two->o[lane + k.lanes], 1e-6);
        EXPECT_EQ(one->o[lane + 2 * k.lanes], 1.0f);
        EXPECT_NEAR(one->before[lane] / factor, two->before[lane], 1e-4 * two->before[lane]);
        EXPECT_NEAR(one->after[lane] / factor, two->after[lane], 1e-3 * two->after[lane]);
      }
    }
  }
}
TEST_P(EveryIsa, SoftmaxToRightEqualsItsTwoPartsInBf16) { compare_passes(DType::bf16); }
TEST_P(EveryIsa, SoftmaxToRightEqualsItsTwoPartsInF16) { compare_passes(DType::f16); }

// Memory for a panel, aligned as the kernels want it.
struct alignas(64) Block {
  float values[64 * 64];
  explicit Block(int seed) {
    for (int n = 0; n < 64 * 64; ++n) values[n] = static_cast<float>((n + seed) * 7919 % 1009) / 100.0f - 5;
  }
};

TEST_P(EveryIsa, RescalesWhatAProductIsAddedTo) {
  const Kernels<float>& k = kernels<float>();
  const ProductSession session(k);
  constexpr int64_t kRows = 24, kDepth = 19;
  auto left = std::make_unique<Block>(1), right = std::make_unique<Block>(2), c = std::make_unique<Block>(3),
       product = std::make_unique<Block>(4), factor = std::make_unique<Block>(5);
  const auto before = std::make_unique<Block>(*c);
  const auto fetched = std::make_unique<Block>(6);
  Ahead ahead;  // two rows of three lines; what is fetched changes nothing
  ahead.rows[0] = {reinterpret_cast<const std::byte*>(fetched->values), 192, 512, 2};
  ahead.count = 1, ahead.lines = 6;
  k.multiply(kRows, kDepth, left->values, kDepth * k.rows, right->values, product->values, Into::overwrite, ahead);
  k.rescale_and_multiply(kRows, kDepth, left->values, kDepth * k.rows, right->values, c->values, factor->values);
  for (int64_t n = 0; n < kRows * k.lanes; ++n)
    EXPECT_NEAR(c->values[n], before->values[n] * factor->values[n % k.lanes] + product->values[n], 1e-3f) << n;
}

TEST_P(EveryIsa, ABiasIsAddedToScaledScoresAndTellsWhetherItHides) {
  const Kernels<float>& k = kernels<float>();
  constexpr int64_t kStride = 61;
  for (const int64_t keys : {1, 4, 16, 19, 48, 61})
    for (const int64_t rows : {k.lanes, k.lanes - 3, int64_t{1}})
      for (const int64_t hidden : {int64_t{-1}, int64_t{0}, keys - 1}) {
        SCOPED_TRACE(testing::Message() << keys << " keys, " << rows << " rows, " << hidden);
        auto bias = std::make_unique<Block>(1), s = std::make_unique<Block>(2), staging = std::make_unique<Block>(3);
        const auto before = std::make_unique<Block>(*s);
        if (hidden >= 0) bias->values[(rows - 1) * kStride + hidden] = -std::numeric_limits<float>::infinity();
        const Source source{bias->values, DType::f32, 0, kStride, rows, keys};
        EXPECT_EQ(k.add_rows(source, 0.25f, s->values, staging->values), hidden >= 0);
        for (int64_t key = 0; key < keys; ++key)
          for (int64_t lane = 0; lane < rows; ++lane)
            EXPECT_FLOAT_EQ(s->values[key * k.lanes + lane],
                            before->values[key * k.lanes + lane] * 0.25f + bias->values[lane * kStride + key]);
      }
}

TEST_P(EveryIsa, AMaskHidesWhatItDoesNotAllow) {
  const Kernels<float>& k = kernels<float>();
  std::vector<uint32_t> words(static_cast<size_t>(4 * k.lanes));
  for (size_t n = 0; n < words.size(); ++n) words[n] = static_cast<uint32_t>(n + 1) * 0x9e3779b9u & ~1u;
  for (const int64_t first : {0, 16, 48})
    for (const int64_t keys : {1, 15, 16, 33, 53}) {
      auto s = std::make_unique<Block>(2);
      s->values[0] = std::numeric_limits<float>::quiet_NaN();  // hidden where it is key 0 of a word
      const auto before = std::make_unique<Block>(*s);
      k.mask(keys, s->values, words.data(), first);
      for (int64_t key = 0; key < keys; ++key)
        for (int64_t lane = 0; lane < k.lanes; ++lane) {
          const int64_t at = key * k.lanes + lane, bit = first + key;
          if (at == 0 && first != 0) continue;
          const bool seen = (words[static_cast<size_t>(bit / 32 * k.lanes + lane)] >> bit % 32 & 1) != 0;
          EXPECT_EQ(s->values[at], seen ? before->values[at] : -std::numeric_limits<float>::infinity()) << at;
        }
    }
}

#if defined(__x86_64__)
TEST_P(EveryIsa, FlushesTinySumsOfItsOwnOnly) {
  const uint32_t before = _mm_getcsr();
  {
    const ProductSession session(kernels<float>());
    EXPECT_EQ(_mm_getcsr() & 0x8000u, 0x8000u);
  }
  EXPECT_EQ(_mm_getcsr(), before);
}
#endif

INSTANTIATE_TEST_SUITE_P(Isa, EveryIsa, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Isa, TheBestComesLastAndIsTheDefault) {
  if (std::getenv("CUFLASH_CPU_ISA")) GTEST_SKIP() << "CUFLASH_CPU_ISA is set";
  EXPECT_STREQ(isa_name(), isa_names().back());
}

// The variable is read once, so this runs in a process that has not read it yet.
TEST(IsaDeathTest, AnUnknownOneInTheEnvironmentIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("CUFLASH_CPU_ISA", "z80", 1);
  EXPECT_EXIT(
      {
        try {
          isa_name();
        } catch (const FlashAttentionError& error) {
          std::fputs(error.what(), stderr);
          std::exit(error.status() == CUFLASH_UNSUPPORTED ? 3 : 4);
        }
        std::exit(0);
      },
      testing::ExitedWithCode(3), "CUFLASH_CPU_ISA: .z80. is not an instruction set");
  unsetenv("CUFLASH_CPU_ISA");
}

}  // namespace
}  // namespace cuflash::cpu
