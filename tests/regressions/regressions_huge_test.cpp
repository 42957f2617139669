// Sizes beyond 16 and 32 bits: batches, heads, lengths, strides, offsets and element counts. Inputs repeat by stride 0
// and memory is sparse, so that the cases run in seconds; the oracle looks at a few rows.
#include <algorithm>
#include <cmath>

#include "check/run/compare.h"
#include "reference/cache.h"
#include "reference/naive.h"
#include "tests/shared/sparse_memory.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

constexpr int64_t k2To31 = int64_t{1} << 31;

// Entry `index` of `count` equal parts of everything a call wrote.
Results entry(const Results& r, int64_t count, int64_t index) {
  const auto cut = [&](const std::vector<double>& values) {
    const auto size = static_cast<int64_t>(values.size()) / count;
    return part(values, index * size, size);
  };
  return {cut(r.o), cut(r.lse), cut(r.dq), cut(r.dk), cut(r.dv), {}, {}};
}

// A number cut to 16 bits is a wrong result in every build, and takes long to reach in instrumented code.
#define SKIP_IF_SANITIZED() \
  if (kSanitized) GTEST_SKIP() << "takes long with a sanitizer; the same indices are met without one"

// Runs the whole problem and compares the entries of dimension `dim` (0: batch, 1: heads) with the oracle, each alone.
void expect_entries_match(const Inputs& in, int dim, const std::vector<int64_t>& entries) {
  const Results r = run(in);
  for (int64_t index : entries) {
    SCOPED_TRACE(index);
    Attention one = in.attention;
    for (ConstTensor* t : {&one.q, &one.k, &one.v}) *t = narrow(*t, dim, index, 1);
    const ConstTensor dout = narrow(in.dout.view(), dim, index, 1);
    expect_equals_oracle(one, dout, {}, entry(r, in.attention.q.shape[static_cast<size_t>(dim)], index));
  }
}

TEST(ManyEntries, BatchBeyond16Bits) {
  SKIP_IF_SANITIZED();
  for (DType dtype : {DType::f32, DType::f16}) {
    Inputs in = dense({.batch = 65537, .len_q = 4, .len_k = 4, .dtype = dtype});
    in.attention.causal = true;
    expect_entries_match(in, 0, {0, 1, 65535, 65536});
  }
}

TEST(ManyEntries, HeadsBeyond16Bits) {
  SKIP_IF_SANITIZED();
  Inputs in = dense({.heads_q = 65537, .heads_k = 65537, .len_q = 5, .len_k = 10});
  expect_entries_match(in, 1, {0, 65535, 65536});
}

TEST(ManyEntries, BatchTimesHeadsBeyond16Bits) {
  SKIP_IF_SANITIZED();
  Inputs in = dense({.batch = 8300,
                     .heads_q = 16,
                     .heads_k = 16,
                     .len_q = 1,
                     .len_k = 1,
                     .dim = 16,
                     .dim_v = 16,
                     .dtype = DType::bf16});
  expect_entries_match(in, 0, {0, 4095, 4096, 8299});
}

// Padding every sequence to a tile would need more than 2^31 elements here.
TEST(ManyEntries, WorkspaceOfShortSequencesStaysSmall) {
  const Tensor layout = bhsd<void>(nullptr, DType::bf16, 8300, 16, 1, 128);
  const SparseTensor t(layout), dq(layout), dk(layout), dv(layout), o(layout);
  const SparseTensor lse(contiguous<void>(nullptr, DType::f32, 8300, 16, 1));
  const Attention a{.q = t.view(), .k = t.view(), .v = t.view()};
  BackwardTensors tensors{.o = t.view(), .lse = lse.view(), .dout = t.view()};
  tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
  // CUDA sums dQ in f32, in blocks of 16 rows, however short a sequence is.
  const size_t allowed = on_cuda() ? size_t{8300} * 16 * 16 * (128 + 16) * 4 : size_t{16} << 20;
  EXPECT_LT(check::workspace_bytes(test_device(), a, tensors, {.num_threads = 4}), allowed);
  EXPECT_LT(check::workspace_bytes(test_device(), a, ForwardOutputs{.o = o.view()}, {.num_threads = 4}),
            size_t{16} << 20);
}

// All queries (or keys) are equal, so one row of the oracle represents all of them.
TEST(LongSequences, MoreThan65535TilesOfQueries) {
  SKIP_IF_SANITIZED();
  const int64_t length = 64 * 65535 + 1;
  const Sizes one{.len_q = 1, .len_k = 16, .dim = 2, .dim_v = 2, .dtype = DType::f64};
  const Inputs in = dense(one);
  const Results expected = expect_matches_oracle(in);
  Attention many = in.attention;
  ConstTensor dout = in.dout.view();
  for (ConstTensor* t : {&many.q, &dout}) t->shape[2] = length, t->stride[2] = 0;
  const Results r = run(many, dout);
  for (int64_t i : {int64_t{0}, int64_t{65535}, length / 2, length - 1}) {
    const std::vector<double> o = part(r.o, 2 * i, 2), dq = part(r.dq, 2 * i, 2);
    for (size_t n = 0; n < 2; ++n) {  // one query alone is decoded, with sums in another order
      EXPECT_NEAR(o[n], expected.o[n], 1e-13) << "query " << i;
      EXPECT_NEAR(dq[n], expected.dq[n], 1e-13) << "query " << i;
    }
    EXPECT_NEAR(r.lse[static_cast<size_t>(i)], expected.lse[0], 1e-13) << "query " << i;
  }
  for (size_t n = 0; n < r.dk.size(); ++n) {
    EXPECT_NEAR(r.dk[n] / static_cast<double>(length), expected.dk[n], 1e-9);
    EXPECT_NEAR(r.dv[n] / static_cast<double>(length), expected.dv[n], 1e-9);
  }
}

TEST(LongSequences, MoreThan65535TilesOfKeys) {
  SKIP_IF_SANITIZED();
  const int64_t length = 64 * 65535 + 1;
  const Inputs in = dense({.len_q = 3, .len_k = 1, .dim = 2, .dim_v = 2, .dtype = DType::f64});
  const Results expected = expect_matches_oracle(in);
  Attention many = in.attention;
  for (ConstTensor* t : {&many.k, &many.v}) t->shape[2] = length, t->stride[2] = 0;
  const Results r = run(many, in.dout.view());
  for (size_t n = 0; n < r.o.size(); ++n) EXPECT_NEAR(r.o[n], expected.o[n], 1e-9);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(r.lse[i], expected.lse[i] + std::log(static_cast<double>(length)), 1e-9);
  for (int64_t j : {int64_t{0}, length - 1})
    for (int64_t n = 0; n < 2; ++n)
      EXPECT_NEAR(r.dv[static_cast<size_t>(2 * j + n)] * static_cast<double>(length),
                  expected.dv[static_cast<size_t>(n)], 1e-9);
}

TEST(LongSequences, MaskTensorOf65600Keys) {
  Inputs in = dense({.len_q = 3, .len_k = 65600, .dim = 4, .dim_v = 4});
  std::mt19937_64 bits(3);
  std::vector<uint8_t> mask(3 * 65600);
  for (auto& visible : mask) visible = bits() % 2 == 0;
  in.attention.mask = contiguous(std::as_const(mask).data(), DType::boolean, 1, 1, 3, 65600);
  expect_matches_oracle(in);
}

// A mask of 2.5e9 bytes, of which only the last 64 rows show anything. A window keeps the work small.
TEST(LongSequences, MaskTensorBeyond32BitOffsets) {
  const int64_t length = 49999, rows = 64, dim = 8;
  const SparseTensor mask(contiguous<void>(nullptr, DType::boolean, 1, 1, length, length));
  auto* bytes = static_cast<uint8_t*>(mask.view().data);
  for (int64_t i = length - rows; i < length; ++i)
    for (int64_t j = i - 70; j <= i; ++j) bytes[i * length + j] = (i * 31 + j * 17) % 3 != 0;
  Inputs in = dense({.len_q = length, .len_k = length});
  in.attention.mask = mask.view();
  in.attention.causal = true;
  in.attention.window_left = 60;
  const Results r = run(in);
  EXPECT_TRUE(all_equal(part(r.lse, 0, length - rows), -kInf) && all_equal(part(r.o, 0, (length - rows) * dim), 0));

  const int64_t keys = 128;
  Attention end = in.attention;
  end.q = narrow(end.q, 2, length - rows, rows);
  end.k = narrow(end.k, 2, length - keys, keys), end.v = narrow(end.v, 2, length - keys, keys);
  end.mask = narrow(narrow(end.mask, 2, length - rows, rows), 3, length - keys, keys);
  const auto last = [&](const std::vector<double>& values, int64_t count) {
    return part(values, static_cast<int64_t>(values.size()) - count, count);
  };
  expect_equals_oracle(end, narrow(in.dout.view(), 2, length - rows, rows), {},
                       {last(r.o, rows * dim),
                        last(r.lse, rows),
                        last(r.dq, rows * dim),
                        last(r.dk, keys * dim),
                        last(r.dv, keys * dim),
                        {},
                        {}});
}

// All tensors of a problem in sparse memory, with these strides of batch, head and row.
struct SparseProblem {
  SparseTensor q, k, v, o, lse, dout, dq, dk, dv, bias, dbias;

  static Tensor layout(DType dtype, std::array<int64_t, 4> shape, std::array<int64_t, 3> stride) {
    return {nullptr, dtype, 4, shape, {stride[0], stride[1], stride[2], 1}};
  }
  static Tensor lse_layout(const Tensor& q) {
    const int64_t head = std::max(q.stride[1], q.shape[2]), batch = std::max(q.stride[0], q.shape[1] * q.shape[2]);
    return {nullptr, DType::f32, 3, {q.shape[0], q.shape[1], q.shape[2]}, {batch, head, 1}};
  }
  SparseProblem(const Tensor& q, const Tensor& k, const Tensor& bias)
      : q(q), k(k), v(k), o(q), lse(lse_layout(q)), dout(q), dq(q), dk(k), dv(k), bias(bias), dbias(bias) {}

  void expect_matches() const {
    fill_normal(q.view(), 1), fill_normal(k.view(), 2), fill_normal(v.view(), 3), fill_normal(dout.view(), 4);
    fill_normal(bias.view(), 5);
    const Attention a{.q = q.view(), .k = k.view(), .v = v.view(), .causal = true, .bias = bias.view()};
    run_forward(a, {.o = o.view(), .lse = lse.view()});
    BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = dout.view()};
    tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view(), tensors.dbias = dbias.view();
    run_backward(a, tensors);
    expect_equals_oracle(a, dout.view(), {},
                         {values_of(o.view()),
                          values_of(lse.view()),
                          values_of(dq.view()),
                          values_of(dk.view()),
                          values_of(dv.view()),
                          values_of(dbias.view()),
                          {}});
  }
};

// With extents of 2 or 3, stride * index is beyond 2^31, 2^32, or both.
TEST(HugeStrides, OfBatchHeadAndRow) {
  for (size_t huge = 0; huge < 3; ++huge)
    for (int64_t stride : {k2To31 + 8, k2To31 - 8}) {
      SCOPED_TRACE(::testing::Message() << "dimension " << huge << " stride " << stride);
      std::array<int64_t, 3> strides{3 * 3 * 8, 3 * 8, 8};
      strides[huge] = stride;
      const auto layout = SparseProblem::layout(DType::f16, {3, 3, 3, 8}, strides);
      SparseProblem(layout, layout, SparseProblem::layout(DType::f16, {3, 3, 3, 3}, strides)).expect_matches();
    }
}

// No stride is large; the last row of the last entry is 2^31 elements away all the same.
TEST(HugeStrides, OffsetsThatAddUpBeyond32Bits) {
  const int64_t rows = 70, row_stride = (int64_t{1} << 25) + 128;
  const auto q = SparseProblem::layout(DType::bf16, {2, 2, rows, 16}, {32, 16, row_stride});
  const auto bias = SparseProblem::layout(DType::bf16, {2, 2, rows, rows}, {2 * rows, rows, row_stride});
  SparseProblem(q, q, bias).expect_matches();
}

// Slots 1 to 4 of a cache whose slots are 2^30 elements apart; slot 0 must stay as it was.
TEST(HugeStrides, BatchStrideOf2To30) {
  const auto slots = SparseProblem::layout(DType::f16, {5, 2, 20, 8}, {int64_t{1} << 30, 160, 8});
  const SparseTensor k(slots), v(slots), dk(slots), dv(slots);
  fill_normal(narrow(k.view(), 0, 1, 4), 2), fill_normal(narrow(v.view(), 0, 1, 4), 3);
  Inputs in = dense({.batch = 4, .heads_q = 2, .heads_k = 2, .len_q = 1, .len_k = 20, .dtype = DType::f16});
  in.attention.k = narrow(k.view(), 0, 1, 4), in.attention.v = narrow(v.view(), 0, 1, 4);
  Buffer o(in.dout.view()), dq(in.q.view()), lse(contiguous<void>(nullptr, DType::f32, 4, 2, 1));
  run_forward(in.attention, {.o = o.view(), .lse = lse.view()});
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = in.dout.view(), .dq = dq.view()};
  tensors.dk = narrow(dk.view(), 0, 1, 4), tensors.dv = narrow(dv.view(), 0, 1, 4);
  run_backward(in.attention, tensors);
  expect_equals_oracle(in.attention, in.dout.view(), {},
                       {o.read(), lse.read(), dq.read(), values_of(tensors.dk), values_of(tensors.dv), {}, {}});
  EXPECT_TRUE(all_equal(values_of(narrow(dk.view(), 0, 0, 1)), 0) &&
              all_equal(values_of(narrow(dv.view(), 0, 0, 1)), 0));
}

// New rows are written to the right entries or pages, and read there; the last begins at element 2^32.
TEST(HugeStrides, EntriesAndPagesOfACache) {
  constexpr int64_t kHuge = int64_t{1} << 30, kHeads = 2, kRows = 4, kNew = 2, kDim = 8;
  const std::vector<int32_t> before{1, 0, 2, 2}, entries{1, 2, 3, 4}, table{1, 2, 3, 4};
  Buffer q(bshd<void>(nullptr, DType::bf16, 4, 1, 2 * kHeads, kDim)), o(q.view());
  Buffer k_new(bshd<void>(nullptr, DType::bf16, 4, kNew, kHeads, kDim)), v_new(k_new.view());
  fill_normal(q.view(), 1), fill_normal(k_new.view(), 2), fill_normal(v_new.view(), 3);
  const Attention a{.q = q.view(), .k = {}, .v = {}, .causal = true};
  for (const bool far_rows : {false, true})
    for (const bool paged : {false, true}) {
      SCOPED_TRACE(::testing::Message() << far_rows << " " << paged);
      const Tensor layout{nullptr,
                          DType::bf16,
                          4,
                          {5, kHeads, kRows, kDim},
                          {far_rows ? kHeads * kDim : kHuge, kDim, far_rows ? kHuge : kHeads * kDim, 1}};
      const SparseTensor k(layout), v(layout);
      fill_normal(k.view(), 4), fill_normal(v.view(), 5);
      const auto k_before = values_of(k.view()), v_before = values_of(v.view());
      CacheTensors t{.k = k.view(), .v = v.view(), .seqlens = contiguous(before.data(), 4), .o = o.view()};
      if (paged) t.block_table = contiguous(table.data(), 4, 1);
      else t.batch_idx = contiguous(entries.data(), 4);
      t.k_new = k_new.view(), t.v_new = v_new.view();
      check::attend_cache(test_device(), a, t, {});

      const reference::PlainProblem plain(a, t);
      EXPECT_EQ(check::disagreement("o", check::Quantity::output, DType::bf16, DType::bf16, values_of(o.view()),
                                    reference::oracle_forward(plain.attention()).o,
                                    reference::naive_forward(plain.attention()).o),
                "");
      const auto expect_appended = [&](const ConstTensor& cache, std::vector<double> expected,
                                       const ConstTensor& rows) {
        const auto at = [&](int64_t entry, int64_t h, int64_t row) {
          return ((entry * kHeads + h) * kRows + row) * kDim;
        };
        const std::vector<double> values = values_of(rows);
        for (int64_t b = 0; b < 4; ++b)
          for (int64_t h = 0; h < kHeads; ++h)
            for (int64_t n = 0; n < kNew; ++n)
              std::copy_n(
                  values.begin() + ((b * kHeads + h) * kNew + n) * kDim, kDim,
                  expected.begin() + at(entries[static_cast<size_t>(b)], h, before[static_cast<size_t>(b)] + n));
        EXPECT_TRUE(same_bits(values_of(cache), expected));
      };
      expect_appended(k.view(), k_before, k_new.view());
      expect_appended(v.view(), v_before, v_new.view());
    }
}

// O, dQ and dK have more than 2^31 elements each. All entries but the last are empty.
TEST(ManyElements, OutputsBeyond2To31Elements) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow of these 13 GB would be real memory";
  const int64_t batch = 2600, heads = 16, length = 729, dim = 72;
  ASSERT_GT(batch * heads * length * dim, k2To31);
  const Inputs one = dense({.heads_q = heads,
                            .heads_k = heads,
                            .len_q = length,
                            .len_k = length,
                            .dim = dim,
                            .dim_v = dim,
                            .dtype = DType::bf16});
  const int32_t live = 40;
  Attention last = one.attention;
  last.seqlens_q = last.seqlens_k = contiguous(&live, 1);
  const Results expected = expect_matches_oracle(last, one.dout.view());

  const auto repeated = [&](ConstTensor t) {
    t.shape[0] = batch, t.stride[0] = 0;
    return t;
  };
  std::vector<int32_t> used(static_cast<size_t>(batch), 0);
  used.back() = live;
  Attention all = one.attention;
  all.q = repeated(all.q), all.k = repeated(all.k), all.v = repeated(all.v);
  all.seqlens_q = all.seqlens_k = contiguous(std::as_const(used).data(), batch);
  const Tensor layout = bhsd<void>(nullptr, DType::bf16, batch, heads, length, dim);
  const auto distinct = static_cast<size_t>(2 * heads * length * dim * 2);  // bytes of the last two entries
  const RepeatedTensor o(layout, distinct), dq(layout, distinct), dk(layout, distinct);
  run_forward(all, {.o = o.view()});

  Buffer lse(contiguous<void>(nullptr, DType::f32, 1, heads, length));
  lse.write(expected.lse);
  const ConstTensor last_o = repeated(narrow(o.view(), 0, batch - 1, 1));
  BackwardTensors tensors{.o = last_o, .lse = repeated(lse.view()), .dout = repeated(one.dout.view())};
  tensors.dq = dq.view(), tensors.dk = dk.view();
  run_backward(all, tensors);
  const auto expect_end = [&](const RepeatedTensor& t, const std::vector<double>& values) {
    EXPECT_TRUE(same_bits(values_of(narrow(t.view(), 0, batch - 1, 1)), values));
    EXPECT_TRUE(all_equal(values_of(narrow(t.view(), 0, batch - 2, 1)), 0));
  };
  expect_end(o, expected.o), expect_end(dq, expected.dq), expect_end(dk, expected.dk);
}

}  // namespace
}  // namespace cuflash::test
