// Merging two results of the same queries over different keys gives the result over all keys.
#include <cuflash/cached_attention.h>

#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

// O and LSE of some keys of a problem.
struct Partial {
  Buffer o, lse;

  Partial(const Attention& a, const Tensor& o_layout, const Tensor& lse_layout) : o(o_layout), lse(lse_layout) {
    flash_attention_forward(a, {.o = o.view(), .lse = lse.view()});
  }
};

Tensor lse_layout(const ConstTensor& q) {
  const DType type = state_type(q.dtype);
  if (q.rank == 3) return contiguous<void>(nullptr, type, q.shape[1], q.shape[0]);
  return contiguous<void>(nullptr, type, q.shape[0], q.shape[1], q.shape[2]);
}

Attention with_keys(Attention a, int64_t begin, int64_t count) {
  a.k = narrow(a.k, 2, begin, count), a.v = narrow(a.v, 2, begin, count);
  return a;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-13;
    case DType::f32: return 2e-6;
    case DType::f16: return 2e-3;
    default: return 1.6e-2;
  }
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double allowed) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n) ASSERT_NEAR(actual[n], expected[n], allowed) << n;
}

TEST(Merge, TwoPartsOfTheKeysAreTheWhole) {
  for (const DType dtype : kFloatTypes)
    for (const int64_t cut : {1, 30, 99}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << cut);
      const Inputs in = dense(
          {.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 5, .len_k = 100, .dim = 16, .dim_v = 70, .dtype = dtype});
      const Tensor lse_shape = lse_layout(in.attention.q);
      Partial whole(in.attention, in.dout.view(), lse_shape);
      Partial a(with_keys(in.attention, 0, cut), in.dout.view(), lse_shape);
      Partial b(with_keys(in.attention, cut, 100 - cut), in.dout.view(), lse_shape);
      for (const Buffer* part : {&a.o, &a.lse, &b.o, &b.lse}) const_cast<Buffer*>(part)->freeze();
      Buffer o(in.dout.view()), lse(lse_shape);
      merge_states({a.o.view(), a.lse.view(), b.o.view(), b.lse.view(), o.view(), lse.view()});
      expect_near(o.read(), whole.o.read(), tolerance(dtype));
      expect_near(lse.read(), whole.lse.read(), dtype == DType::f64 ? 1e-13 : 2e-6);
      for (const Buffer* part : {&a.o, &a.lse, &b.o, &b.lse, &o, &lse}) EXPECT_EQ(part->damage(), "");

      // Into f32, without LSE, and by as many threads as there may be.
      Buffer wide(bhsd<void>(nullptr, dtype == DType::f64 ? DType::f64 : DType::f32, 2, 4, 5, 70));
      merge_states({a.o.view(), a.lse.view(), b.o.view(), b.lse.view(), wide.view()}, {.num_threads = 4});
      expect_near(wide.read(), whole.o.read(), tolerance(dtype));
    }
}

// Weights are exp of differences, so that huge or tiny LSE do not overflow.
TEST(Merge, WeightsAreThoseOfTheLse) {
  for (const double offset : {0.0, 1e4, -1e4, 80.0}) {
    Buffer o_a(bhsd<void>(nullptr, DType::f64, 1, 1, 3, 1)), o_b(o_a.view()), o(o_a.view());
    Buffer lse_a(contiguous<void>(nullptr, DType::f64, 1, 1, 3)), lse_b(lse_a.view()), lse(lse_a.view());
    o_a.write({1, 2, 3}), o_b.write({-1, 5, 7});
    lse_a.write({offset, offset + 1, offset - 900}), lse_b.write({offset, offset - 1, offset});
    merge_states({o_a.view(), lse_a.view(), o_b.view(), lse_b.view(), o.view(), lse.view()});
    const double share = 1 / (1 + std::exp(-2.0));
    expect_near(o.read(), {0, 2 * share + 5 * (1 - share), 7}, 1e-14);
    expect_near(lse.read(), {offset + std::log(2.0), offset + 1 - std::log(share), offset},
                1e-14 * std::max(std::abs(offset), 1.0));
  }
}

TEST(Merge, InPlace) {
  for (const bool into_a : {false, true}) {
    const Inputs in = dense({.heads_q = 2, .len_q = 3, .len_k = 40, .dim = 8, .dim_v = 9, .dtype = DType::bf16});
    const Tensor lse_shape = lse_layout(in.attention.q);
    Partial a(with_keys(in.attention, 0, 11), in.dout.view(), lse_shape);
    Partial b(with_keys(in.attention, 11, 29), in.dout.view(), lse_shape);
    Buffer o(in.dout.view()), lse(lse_shape);
    merge_states({a.o.view(), a.lse.view(), b.o.view(), b.lse.view(), o.view(), lse.view()});
    Partial& result = into_a ? a : b;
    merge_states({a.o.view(), a.lse.view(), b.o.view(), b.lse.view(), result.o.view(), result.lse.view()});
    EXPECT_TRUE(same_bits(result.o.read(), o.read()));
    EXPECT_TRUE(same_bits(result.lse.read(), lse.read()));
  }
}

// A part without keys leaves the bits of the other unchanged, whatever its o holds; two such parts give the result without
// keys.
TEST(Merge, APartWithoutKeysDoesNotExist) {
  for (const DType dtype : kFloatTypes) {
    const Inputs in = dense({.heads_q = 2, .len_q = 3, .len_k = 40, .dim = 8, .dim_v = 9, .dtype = dtype});
    const Tensor lse_shape = lse_layout(in.attention.q);
    Partial a(in.attention, in.dout.view(), lse_shape);
    Buffer none(in.dout.view()), never(lse_shape), o(in.dout.view()), lse(lse_shape);
    fill(none.view(), kNan), fill(never.view(), -kInf);
    merge_states({a.o.view(), a.lse.view(), none.view(), never.view(), o.view(), lse.view()});
    EXPECT_TRUE(same_bits(o.read(), a.o.read()) && same_bits(lse.read(), a.lse.read()));
    merge_states({none.view(), never.view(), a.o.view(), a.lse.view(), o.view(), lse.view()});
    EXPECT_TRUE(same_bits(o.read(), a.o.read()) && same_bits(lse.read(), a.lse.read()));
    merge_states({none.view(), never.view(), none.view(), never.view(), o.view(), lse.view()});
    EXPECT_TRUE(all_equal(o.read(), 0) && all_equal(lse.read(), -kInf));
  }
}

// A NaN that was computed is not lost.
TEST(Merge, NanIsKept) {
  Buffer o_a(bhsd<void>(nullptr, DType::f32, 1, 1, 2, 3)), o_b(o_a.view()), o(o_a.view());
  Buffer lse_a(contiguous<void>(nullptr, DType::f32, 1, 1, 2)), lse_b(lse_a.view()), lse(lse_a.view());
  fill(o_a.view(), 1), fill(o_b.view(), 2), fill(lse_a.view(), 0), fill(lse_b.view(), 0);
  fill(narrow(o_a.view(), 2, 0, 1), kNan), fill(narrow(lse_b.view(), 2, 1, 1), kNan);
  merge_states({o_a.view(), lse_a.view(), o_b.view(), lse_b.view(), o.view(), lse.view()});
  for (const double x : o.read()) EXPECT_TRUE(std::isnan(x));
  EXPECT_FALSE(std::isnan(lse.read()[0]));
  EXPECT_TRUE(std::isnan(lse.read()[1]));
}

TEST(Merge, Packed) {
  const Sizes sizes{.heads_q = 3, .heads_k = 1, .len_q = 9, .len_k = 60, .dim = 8, .dim_v = 20};
  const Inputs all = packed(sizes, {0, 4, 9}, {0, 20, 60});
  // The first 10 keys of each sequence, and the others.
  Inputs first =
      packed({.heads_q = 3, .heads_k = 1, .len_q = 9, .len_k = 20, .dim = 8, .dim_v = 20}, {0, 4, 9}, {0, 10, 20});
  Inputs second =
      packed({.heads_q = 3, .heads_k = 1, .len_q = 9, .len_k = 40, .dim = 8, .dim_v = 20}, {0, 4, 9}, {0, 10, 40});
  const auto copy = [](const Buffer& from, int64_t from_row, Buffer& to, int64_t to_row, int64_t rows) {
    const int64_t width = from.view().stride[0];
    for (int64_t n = 0; n < rows * width; ++n) to.set(to_row * width + n, from.get(from_row * width + n));
  };
  for (const auto member : {&Inputs::k, &Inputs::v}) {
    copy(all.*member, 0, first.*member, 0, 10), copy(all.*member, 20, first.*member, 10, 10);
    copy(all.*member, 10, second.*member, 0, 10), copy(all.*member, 30, second.*member, 10, 30);
  }
  const Tensor lse_shape = lse_layout(all.attention.q);
  Partial whole(all.attention, all.dout.view(), lse_shape);
  Partial a(first.attention, all.dout.view(), lse_shape), b(second.attention, all.dout.view(), lse_shape);
  Buffer o(all.dout.view()), lse(lse_shape);
  merge_states({a.o.view(), a.lse.view(), b.o.view(), b.lse.view(), o.view(), lse.view()});
  expect_near(o.read(), whole.o.read(), 2e-6);
  expect_near(lse.read(), whole.lse.read(), 2e-6);
}

}  // namespace
}  // namespace cuflash::test
