// Mask summaries by the public API: one serves several calls, and those that do not fit a call are refused.
#include <numeric>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

constexpr int64_t kLength = 200;

struct Masked {
  Inputs in = dense({.batch = 2, .heads_q = 2, .heads_k = 1, .len_q = kLength, .len_k = kLength});
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kLength * kLength);
  std::vector<std::max_align_t> memory;
  ConstTensor mask;

  Masked() {
    for (size_t n = 0; n < bytes.size(); ++n) bytes[n] = n % 7 < 4 && n / kLength / 60 == n % kLength / 60;
    mask = contiguous(std::as_const(bytes).data(), DType::boolean, 1, 1, kLength, kLength);
  }
  size_t size() const { return mask_summary_size(mask); }
  void* aligned() {
    memory.resize(size() / sizeof(std::max_align_t) + 8);
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  }
  SummarizedMask summarize() { return summarize_mask(mask, aligned(), size()); }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  return "accepted";
}

Results results_of(const Attention& attention, const Inputs& in) {
  Buffer o(in.dout.view()), lse(contiguous<void>(nullptr, DType::f32, 2, 2, kLength)), dq(in.q.view()), dk(in.k.view()),
      dv(in.v.view());
  flash_attention_forward(attention, {.o = o.view(), .lse = lse.view()});
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = in.dout.view()};
  tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
  flash_attention_backward(attention, tensors);
  return {o.read(), lse.read(), dq.read(), dk.read(), dv.read(), {}, {}};
}

TEST(MaskSummary, OneServesEveryCall) {
  Masked m;
  const SummarizedMask summary = m.summarize();
  for (const bool causal : {false, true})
    for (const int64_t window : {int64_t{-1}, int64_t{50}}) {
      Attention with_mask = m.in.attention;
      with_mask.causal = causal, with_mask.window_left = window;
      Attention with_summary = with_mask, with_both = with_mask;
      with_mask.mask = m.mask, with_summary.mask_summary = summary;
      with_both.mask = m.mask, with_both.mask_summary = summary;
      const Results expected = results_of(with_mask, m.in);
      EXPECT_TRUE(same_bits(results_of(with_summary, m.in), expected));
      EXPECT_TRUE(same_bits(results_of(with_both, m.in), expected));
    }
}

TEST(MaskSummary, RepeatedDimensionsHaveExtentOne) {
  Masked m;
  ConstTensor repeated = m.mask;
  repeated.shape = {2, 2, kLength, kLength}, repeated.stride = {0, 0, kLength, 1};
  EXPECT_EQ(mask_summary_size(repeated), m.size());
  const SummarizedMask made = summarize_mask(repeated, m.aligned(), m.size());
  EXPECT_EQ(made.shape, (std::array<int64_t, 4>{1, 1, kLength, kLength}));
  ConstTensor one_row = m.mask;
  one_row.shape[2] = 1;
  EXPECT_LT(mask_summary_size(one_row), m.size());
}

TEST(MaskSummary, OfAnotherMaskIsRefused) {
  Masked m;
  const SummarizedMask summary = m.summarize();
  Buffer o(m.in.dout.view());
  const auto forward = [&](const SummarizedMask& given, bool with_mask = false) {
    Attention attention = m.in.attention;
    attention.mask_summary = given;
    if (with_mask) attention.mask = m.mask, attention.mask.shape[2] = 1;
    return refusal([&] { flash_attention_forward(attention, {.o = o.view()}); });
  };
  EXPECT_EQ(forward(summary), "accepted");
  for (const size_t d : {0, 1, 2, 3}) {
    SummarizedMask other = summary;
    other.shape[d] = 3;
    EXPECT_EQ(forward(other).substr(0, 38), "mask_summary: its mask_summary_shape [");
  }
  EXPECT_NE(forward(summary, true).find("mask_summary: is that of a mask [1, 1, 200, 200], but mask is [1, 1, 1, 200]"),
            std::string::npos);
  SummarizedMask small = summary;
  small.data.shape[0] -= 1;
  EXPECT_EQ(forward(small).substr(0, 18), "mask_summary: has ");
  SummarizedMask bytes = summary;
  bytes.data.dtype = DType::boolean;
  EXPECT_EQ(forward(bytes).substr(0, 19), "mask_summary: type ");
  SummarizedMask elsewhere = summary;
  elsewhere.data.data = static_cast<const int32_t*>(summary.data.data) + 1, elsewhere.data.shape[0] += 0;
  EXPECT_NE(forward(elsewhere).find("not aligned to 64 bytes"), std::string::npos);
}

TEST(MaskSummary, MemoryThatIsTooSmallOrSharedIsRefused) {
  Masked m;
  void* memory = m.aligned();
  EXPECT_NE(refusal([&] { summarize_mask(m.mask, memory, m.size() - 4); }).find("summary: has "), std::string::npos);
  EXPECT_NE(refusal([&] { summarize_mask(m.mask, static_cast<std::byte*>(memory) + 4, m.size()); }).find("not aligned"),
            std::string::npos);
  EXPECT_NE(refusal([&] { summarize_mask({}, memory, m.size()); }).find("mask: is missing"), std::string::npos);
  ConstTensor floats = m.mask;
  floats.dtype = DType::f32;
  EXPECT_NE(refusal([&] { mask_summary_size(floats); }).find("mask: type f32"), std::string::npos);
  ConstTensor inside = contiguous(static_cast<const uint8_t*>(memory), DType::boolean, 1, 1, 16, 16);
  EXPECT_NE(refusal([&] { summarize_mask(inside, memory, m.size()); }).find("summary: "), std::string::npos);
  int64_t shape[4] = {};
  EXPECT_EQ(cuflash_summarize_mask(nullptr, nullptr, nullptr, shape), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(cuflash_mask_summary_size(nullptr, nullptr), CUFLASH_INVALID_ARGUMENT);
}

// A program built before there were summaries passes a shorter struct.
TEST(MaskSummary, IsAbsentInAnOlderStruct) {
  Masked m;
  cuflash_attention attention = detail::to_c(m.in.attention);
  attention.struct_size = offsetof(cuflash_attention, mask_summary);
  attention.mask_summary.rank = 99;  // memory behind the struct
  Buffer o(m.in.dout.view());
  const cuflash_forward_outputs outputs = detail::to_c(ForwardOutputs{.o = o.view()});
  EXPECT_EQ(cuflash_forward(&attention, &outputs, nullptr), CUFLASH_OK) << cuflash_last_error();
}

}  // namespace
}  // namespace cuflash::test
