// Memory layouts: misaligned pointers, odd strides, broadcasts, packed QKV, and calls that differ in their layout only.
#include <algorithm>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

// Moves a tensor to `offset` elements after a 64-byte boundary, with the same values.
void move_to_offset(Buffer& buffer, ConstTensor& view, int64_t offset) {
  Buffer moved(buffer.view(), offset);
  moved.write(buffer.read());
  buffer = moved;
  view = buffer.view();
}

TEST(Alignment, ElementAlignedPointersOfInputsAndOutputs) {
  for (DType dtype : kFloatTypes)
    for (int64_t dim : {64, 40}) {
      Inputs in = dense(
          {.batch = 2, .heads_q = 4, .heads_k = 4, .len_q = 64, .len_k = 64, .dim = dim, .dim_v = dim, .dtype = dtype});
      const Results aligned = expect_matches_oracle(in);
      for (int64_t offset : {1, 2, 3, 7}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " D=" << dim << " offset=" << offset);
        ConstTensor dout = in.dout.view();
        move_to_offset(in.q, in.attention.q, offset);
        move_to_offset(in.k, in.attention.k, offset);
        move_to_offset(in.v, in.attention.v, offset);
        move_to_offset(in.dout, dout, offset);
        expect_same_in_another_layout(in, aligned, {.offset = offset});
      }
    }
}

// Bias and mask rows of 43 or 77 elements start anywhere.
TEST(Bias, RowsOfOddLengthAtOddAddresses) {
  for (DType dtype : kFloatTypes)
    for (int64_t len_k : {43, 77}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " Sk=" << len_k);
      Inputs in = dense({.batch = 2, .heads_q = 3, .heads_k = 3, .len_q = 43, .len_k = len_k, .dtype = dtype});
      Buffer bias(contiguous<void>(nullptr, dtype, 2, 3, 43, len_k), 1);
      fill_normal(bias.view(), 6);
      in.attention.bias = bias.view();
      std::vector<uint8_t> mask(static_cast<size_t>(43 * len_k + 1));
      for (size_t n = 0; n < mask.size(); ++n) mask[n] = n % 5 != 0;
      in.attention.mask = contiguous(std::as_const(mask).data() + 1, DType::boolean, 1, 1, 43, len_k);
      expect_matches_oracle(in, {.offset = 1});
    }
}

// Every combination of repeated batch, head and query, expressed by extent 1 or by stride 0.
TEST(Bias, RepeatedInAnyDimension) {
  for (int repeated = 0; repeated < 8; ++repeated)
    for (bool by_stride : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "dimensions " << repeated << " by "
                                        << (by_stride ? "stride 0" : "extent 1"));
      Inputs in = dense({.batch = 3, .heads_q = 4, .heads_k = 2, .len_q = 70, .len_k = 67, .dim = 16, .dim_v = 16});
      std::array<int64_t, 3> extent{3, 4, 70};
      for (size_t d = 0; d < 3; ++d) extent[d] = repeated >> d & 1 ? 1 : extent[d];
      Buffer bias(contiguous<void>(nullptr, DType::f32, extent[0], extent[1], extent[2], 67));
      fill_normal(bias.view(), 9);
      ConstTensor view = bias.view();
      for (size_t d = 0; by_stride && d < 3; ++d)
        if (repeated >> d & 1) view.shape[d] = in.attention.q.shape[d], view.stride[d] = 0;
      in.attention.bias = view;
      in.attention.causal = true;
      expect_matches_oracle(in);
    }
}

TEST(Strides, EveryOrderOfBatchHeadAndRow) {
  const std::array<int64_t, 3> extent{2, 3, 70};
  std::array<size_t, 3> order{0, 1, 2};
  Inputs in = dense({.batch = 2, .heads_q = 3, .heads_k = 3, .len_q = 70, .len_k = 70, .dim = 12, .dim_v = 12});
  const Results expected = expect_matches_oracle(in);
  do {
    for (int64_t gap : {0, 5}) {
      SCOPED_TRACE(::testing::Message() << "order " << order[0] << order[1] << order[2] << " gap " << gap);
      Tensor layout = in.q.view();
      int64_t stride = 12 + gap;
      for (size_t d : {order[2], order[1], order[0]}) layout.stride[d] = stride, stride = stride * extent[d] + gap;
      Inputs moved{layout, layout, layout, layout};
      expect_same_in_another_layout(moved, expected);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// Memory [B, S, 3, H, D]: q, k and v are every third block of heads, and so are their gradients.
TEST(Strides, SlicesOfPackedQkv) {
  const int64_t batch = 2, length = 70, heads = 3, dim = 16;
  const Tensor layout = bshd<void>(nullptr, DType::f32, batch, length, 3 * heads, dim);
  Buffer qkv(layout, 0, "qkv"), gradient(layout, 0, "dqkv");
  fill_normal(qkv.view(), 31);
  const auto third = [&](const Buffer& packed, int64_t n) { return narrow(packed.view(), 1, n * heads, heads); };
  const Attention a{.q = third(qkv, 0), .k = third(qkv, 1), .v = third(qkv, 2), .causal = true};
  Buffer dout(bshd<void>(nullptr, DType::f32, batch, length, heads, dim));
  fill_normal(dout.view(), 32);
  const Results expected = expect_matches_oracle(a, dout.view());

  Buffer o(bshd<void>(nullptr, DType::f32, batch, length, heads, dim)),
      lse(contiguous<void>(nullptr, DType::f32, batch, heads, length));
  run_forward(a, {.o = o.view(), .lse = lse.view()});
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = dout.view()};
  tensors.dq = third(gradient, 0), tensors.dk = third(gradient, 1), tensors.dv = third(gradient, 2);
  run_backward(a, tensors);
  EXPECT_TRUE(same_bits(values_of(third(gradient, 0)), expected.dq));
  EXPECT_TRUE(same_bits(values_of(third(gradient, 1)), expected.dk));
  EXPECT_TRUE(same_bits(values_of(third(gradient, 2)), expected.dv));
}

TEST(Strides, OfDimensionsOfOneElementMeanNothing) {
  for (int64_t odd : {0, 1, 7, 1000003}) {
    SCOPED_TRACE(odd);
    Inputs in = dense({.len_q = 1, .len_k = 1});
    const Results expected = expect_matches_oracle(in);
    for (ConstTensor* t : {&in.attention.q, &in.attention.k, &in.attention.v})
      for (size_t d = 0; d < 3; ++d) t->stride[d] = odd;
    EXPECT_TRUE(same_bits(run(in), expected));

    Inputs thin = dense({.len_q = 5, .len_k = 6, .dim = 1, .dim_v = 1});
    const Results thin_expected = expect_matches_oracle(thin);
    for (ConstTensor* t : {&thin.attention.q, &thin.attention.k, &thin.attention.v}) t->stride[3] = odd;
    EXPECT_TRUE(same_bits(run(thin), thin_expected));
  }
}

TEST(Strides, RepeatedInputs) {
  Inputs in = dense({.batch = 3, .heads_q = 4, .heads_k = 4, .len_q = 20, .len_k = 70});
  in.attention.q.stride[0] = 0;                                // one query block for the whole batch
  in.attention.k.stride[1] = 0, in.attention.v.stride[1] = 0;  // one KV head, repeated
  in.attention.k.stride[2] = 0;                                // and every key the same
  ConstTensor dout = in.dout.view();
  dout.stride[2] = 0;
  expect_matches_oracle(in.attention, dout);
}

TEST(Strides, TransposedLastDimensionsAreRefused) {
  const auto transposed = [](ConstTensor t) {
    std::swap(t.stride[2], t.stride[3]);
    return t;
  };
  Inputs in = dense({.len_q = 8, .len_k = 8});
  Attention a = in.attention;
  a.v = transposed(a.v);
  expect_refused(a, "v: ");
  a = in.attention, a.k = transposed(a.k);
  expect_refused(a, "k: ");
  a = in.attention, a.q = transposed(a.q);
  EXPECT_THROW(run_forward(a, {.o = in.dout.view()}), FlashAttentionError);
  Tensor o = in.dout.view();
  std::swap(o.stride[2], o.stride[3]);
  EXPECT_THROW(run_forward(in.attention, {.o = o}), FlashAttentionError);
}

// Any state kept from a call of the same shape would show in the next one.
TEST(RepeatedCalls, OtherStridesOrTypesOfTheSameShape) {
  const Sizes sizes{.batch = 2, .heads_q = 4, .heads_k = 4, .len_q = 33, .len_k = 33, .dim = 32, .dim_v = 32};
  const Inputs f32 = dense(sizes);
  Sizes half = sizes;
  half.dtype = DType::f16;
  const Inputs f16 = dense(half);
  half.dtype = DType::bf16;
  const Inputs bf16 = dense(half);
  const Tensor strided = bshd<void>(nullptr, DType::f32, 2, 33, 4, 32);
  const Inputs bshd_order{strided, strided, strided, strided};
  const Results first = expect_matches_oracle(f32);
  for (const Inputs* other : {&bshd_order, &f16, &bf16}) {
    expect_matches_oracle(*other);
    EXPECT_TRUE(same_bits(run(f32), first));
  }
}

}  // namespace
}  // namespace cuflash::test
