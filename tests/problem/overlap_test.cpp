// Tests whether tensors share memory, against a list of their bytes, and legal views of one buffer.
#include "problem/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "check/cases/choices.h"
#include "cuflash/cached_attention.h"
#include "tests/properties/property.h"

namespace cuflash {
namespace {

using check::Choices;

cuflash_tensor draw_tensor(Choices& choices) {
  const DType type = choices.one_of<DType>({DType::f32, DType::f64, DType::bf16, DType::boolean});
  cuflash_tensor t{};
  t.dtype = static_cast<int32_t>(type);
  t.rank = static_cast<int32_t>(choices.between(1, 4));
  for (int d = 0; d < t.rank; ++d) t.shape[d] = choices.between(1, 4), t.stride[d] = choices.between(0, 40);
  t.stride[t.rank - 1] = 1;
  t.data = reinterpret_cast<const void*>(4096 + choices.between(0, 60) * size_of(type));
  return t;
}

std::set<uintptr_t> bytes_of(const cuflash_tensor& t) {
  std::set<uintptr_t> bytes;
  const auto size = static_cast<uintptr_t>(size_of(static_cast<DType>(t.dtype)));
  int64_t count = 1;
  for (int d = 0; d < t.rank; ++d) count *= t.shape[d];
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n, element = 0;
    for (int d = t.rank - 1; d >= 0; --d) element += rest % t.shape[d] * t.stride[d], rest /= t.shape[d];
    for (uintptr_t byte = 0; byte < size; ++byte)
      bytes.insert(reinterpret_cast<uintptr_t>(t.data) + static_cast<uintptr_t>(element) * size + byte);
  }
  return bytes;
}

std::string text_of(const cuflash_tensor& t) {
  std::string text = std::to_string(reinterpret_cast<uintptr_t>(t.data)) + " " + name_of(static_cast<DType>(t.dtype));
  for (int d = 0; d < t.rank; ++d) text += " " + std::to_string(t.shape[d]) + ":" + std::to_string(t.stride[d]);
  return text;
}

TEST(Overlap, IsWhatAListOfBytesSays) {
  int64_t shared = 0, interleaved = 0;
  test::property("tensors share memory where a byte of both is the same", 20000, [&](Choices& choices) -> std::string {
    const cuflash_tensor a = draw_tensor(choices), b = draw_tensor(choices);
    const std::set<uintptr_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool expected =
        std::any_of(bytes_a.begin(), bytes_a.end(), [&](auto byte) { return bytes_b.contains(byte); });
    const Argument first("a", a), second("b", b);
    const Extent extent = extent_of(first);
    if (extent.begin != *bytes_a.begin() || extent.end != *bytes_a.rbegin() + 1) return "extent of " + text_of(a);
    shared += expected, interleaved += !expected && extent.meets(extent_of(second));
    if (share_memory(first, second) == expected && share_memory(second, first) == expected) return "";
    return text_of(a) + " and " + text_of(b) + (expected ? " share a byte" : " share nothing");
  });
  EXPECT_GT(shared, test::scaled(1000));
  EXPECT_GT(interleaved, test::scaled(300));
}

// One buffer [B, S, slices, H, D], of which each view is a slice; by_head: [B, S, H, slices, D].
struct Slices {
  int64_t batch = 3, length = 700, heads = 4, dim = 8, count = 4;
  bool by_head = false;
  std::vector<float> memory = std::vector<float>(static_cast<size_t>(batch * length * heads * dim * count));

  Tensor slice(int64_t n, int64_t offset = 0) {
    const int64_t token = count * heads * dim;
    float* data = memory.data() + n * (by_head ? dim : heads * dim) + offset;
    return {data, DType::f32, 4, {batch, heads, length, dim}, {length * token, by_head ? count * dim : dim, token, 1}};
  }
};

std::string answer(const Attention& a, const Tensor& o) {
  try {
    flash_attention_forward(a, {.o = o}, {.num_threads = 1});
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  return "";
}

TEST(Overlap, AnEmptyTensorSharesNothingWhateverItsStrides) {
  cuflash_tensor empty{};
  empty.data = reinterpret_cast<const void*>(4096), empty.dtype = static_cast<int32_t>(DType::i32), empty.rank = 2;
  empty.shape[0] = int64_t{1} << 27, empty.stride[0] = int64_t{1} << 38, empty.stride[1] = 1;
  EXPECT_FALSE(share_memory({"block_table", empty}, {"block_table", empty}));
}

TEST(Overlap, SlicesOfOneBufferAreLegal) {
  for (const bool by_head : {false, true}) {
    Slices buffer{.by_head = by_head};
    const Attention a{.q = buffer.slice(0), .k = buffer.slice(1), .v = buffer.slice(2)};
    EXPECT_EQ(answer(a, buffer.slice(3)), "");
    // One element into the next slice.
    EXPECT_NE(answer(a, buffer.slice(3, -1)).find("o: shares memory with v"), std::string::npos);
    EXPECT_NE(answer(a, buffer.slice(0, 1)).find("o: shares memory with q"), std::string::npos);
    EXPECT_NE(answer(a, buffer.slice(1)).find("o: has the same data as k"), std::string::npos);
  }
}

TEST(Overlap, GradientsMayBeSlicesOfOneBuffer) {
  Slices inputs{.length = 40}, gradients{.length = 40};
  std::vector<float> lse(static_cast<size_t>(3 * 4 * 40));
  const Attention a{.q = inputs.slice(0), .k = inputs.slice(1), .v = inputs.slice(2)};
  flash_attention_forward(a, {.o = inputs.slice(3), .lse = contiguous(lse.data(), 3, 4, 40)});
  BackwardTensors t{.o = inputs.slice(3),
                    .lse = contiguous(std::as_const(lse).data(), 3, 4, 40),
                    .dout = inputs.slice(3),
                    .dq = gradients.slice(0),
                    .dk = gradients.slice(1),
                    .dv = gradients.slice(2)};
  EXPECT_NO_THROW(flash_attention_backward(a, t));
  t.dv = gradients.slice(1, 31);
  EXPECT_THROW(flash_attention_backward(a, t), FlashAttentionError);
}

TEST(Overlap, KeysAndValuesOfACacheMayInterleaveAndMayNotShare) {
  std::vector<float> cache(4 * 16 * 2 * 8), q(2 * 8), k_new(2 * 8), v_new(2 * 8), o(2 * 8);
  const std::vector<int32_t> rows{3, 7};
  const auto half = [&](int64_t offset) {
    return Tensor{cache.data() + offset, DType::f32, 4, {4, 1, 16, 8}, {256, 8, 16, 1}};
  };
  const auto attend = [&](const Tensor& v) {
    flash_attention_with_cache({.q = bshd(std::as_const(q).data(), 2, 1, 1, 8)},
                               {.k = half(0),
                                .v = v,
                                .seqlens = contiguous(rows.data(), 2),
                                .k_new = bshd(std::as_const(k_new).data(), 2, 1, 1, 8),
                                .v_new = bshd(std::as_const(v_new).data(), 2, 1, 1, 8),
                                .o = bshd(o.data(), 2, 1, 1, 8)});
  };
  EXPECT_NO_THROW(attend(half(8)));
  EXPECT_THROW(attend(half(7)), FlashAttentionError);
}

// The caller may use the rest of a workspace that is larger than the call needs.
TEST(Overlap, OnlyTheQueriedBytesOfAWorkspaceAreScratch) {
  std::vector<float> q(2 * 16 * 8);
  alignas(64) static std::byte memory[1 << 20];
  const auto view = bshd(std::as_const(q).data(), 1, 16, 2, 8);
  const Attention a{.q = view, .k = view, .v = view};
  Execution execution{.num_threads = 1, .workspace = memory, .workspace_size = sizeof memory};
  const auto at = [&](size_t offset) { return bshd(reinterpret_cast<float*>(memory + offset), 1, 16, 2, 8); };
  const size_t needed = workspace_size(a, ForwardOutputs{.o = at(0)}, execution);
  ASSERT_LT(needed, sizeof memory / 2);
  EXPECT_NO_THROW(flash_attention_forward(a, {.o = at((needed + 63) / 64 * 64)}, execution));
  for (const size_t offset : {size_t{0}, (needed - 1) / 4 * 4}) {
    try {
      flash_attention_forward(a, {.o = at(offset)}, execution);
      ADD_FAILURE() << offset;
    } catch (const FlashAttentionError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("workspace: ", 0), 0u) << error.what();
    }
  }
}

}  // namespace
}  // namespace cuflash
