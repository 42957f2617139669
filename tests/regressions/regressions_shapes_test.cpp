// Shapes: empty dimensions, head groups, head sizes.
#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

TEST(EmptyDimensions, NoKeys) {
  for (DType dtype : kFloatTypes)
    for (bool causal : {false, true}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " causal=" << causal);
      Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 66, .len_k = 0, .dtype = dtype});
      in.attention.causal = causal;
      const Results r = expect_matches_oracle(in);
      EXPECT_TRUE(all_equal(r.o, 0) && all_equal(r.lse, -kInf) && all_equal(r.dq, 0));
      EXPECT_EQ(r.o.size(), 2u * 4 * 66 * 8);
    }
}

TEST(EmptyDimensions, NoKeysWithASink) {
  Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = 5, .len_k = 0});
  const std::vector<float> sink{0.5f, -3.0f};
  in.attention.sink = contiguous(sink.data(), 2);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.o, 0) && all_equal(part(r.lse, 0, 5), 0.5) && all_equal(part(r.lse, 5, 5), -3));
}

TEST(EmptyDimensions, NoQueries) {
  for (bool causal : {false, true}) {
    Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 0, .len_k = 4096});
    in.attention.causal = causal;
    const Results r = expect_matches_oracle(in);
    EXPECT_EQ(r.dk.size(), 2u * 2 * 4096 * 8);
    EXPECT_TRUE(all_equal(r.dk, 0) && all_equal(r.dv, 0));
  }
}

TEST(EmptyDimensions, NoBatch) {
  Inputs in = dense({.batch = 0, .heads_q = 2, .heads_k = 2, .len_q = 64, .len_k = 64});
  const std::vector<float> sink{0.5f, -3.0f};
  in.attention.sink = contiguous(sink.data(), 2);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.dsink, 0) && r.dsink.size() == 2);  // a sum over nothing still has to be written
}

TEST(EmptyDimensions, NoQueriesAndNoKeys) {
  for (DType dtype : kFloatTypes) {
    Inputs in =
        dense({.batch = 7, .heads_q = 7, .heads_k = 7, .len_q = 0, .len_k = 0, .dim = 7, .dim_v = 7, .dtype = dtype});
    in.attention.causal = true;
    expect_matches_oracle(in);
  }
}

TEST(EmptyDimensions, NeedNoMemory) {
  Inputs in = dense({.batch = 2, .len_q = 3, .len_k = 0});
  in.attention.k.data = in.attention.v.data = nullptr;
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.o, 0) && all_equal(r.lse, -kInf));
}

TEST(EmptyDimensions, BroadcastGradientsAreStillWritten) {
  Inputs in = dense({.batch = 2, .heads_q = 2, .heads_k = 2, .len_q = 0, .len_k = 70});
  Buffer bias(contiguous<void>(nullptr, DType::f32, 1, 1, 1, 70));
  fill_normal(bias.view(), 3);
  in.attention.bias = bias.view();
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.dbias, 0) && r.dbias.size() == 70);
}

TEST(EmptyDimensions, NoHeadsAndNoHeadSizeAreRefused) {
  expect_refused(dense({.heads_q = 0, .heads_k = 0, .len_q = 4, .len_k = 4}).attention, "heads");
  expect_refused(dense({.heads_q = 2, .heads_k = 0, .len_q = 4, .len_k = 4}).attention, "heads");
  expect_refused(dense({.len_q = 4, .len_k = 4, .dim = 0}).attention, "D 0");
  expect_refused(dense({.len_q = 4, .len_k = 4, .dim_v = 0}).attention, "Dv 0");
}

TEST(HeadGroups, EverySizeInEveryType) {
  for (DType dtype : kFloatTypes)
    for (int64_t group : {1, 3, 5, 6, 7, 8, 16}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " group=" << group);
      Inputs in = dense({.heads_q = 2 * group, .heads_k = 2, .len_q = 20, .len_k = 37, .dtype = dtype});
      expect_matches_oracle(in);
    }
}

// More rows than any tile has, so that a group spans tiles, with one query head set apart from the others.
TEST(HeadGroups, CausalOverSeveralTiles) {
  for (int64_t group : {3, 8}) {
    Inputs in =
        dense({.batch = 2, .heads_q = 2 * group, .heads_k = 2, .len_q = 150, .len_k = 170, .dim = 16, .dim_v = 16});
    fill_normal(narrow(in.q.view(), 1, group, 1), 99, 4);
    in.attention.causal = true;
    expect_matches_oracle(in);
  }
}

TEST(HeadGroups, SingleQueryOfManyHeads) {
  Inputs in = dense({.batch = 3, .heads_q = 16, .heads_k = 1, .len_q = 1, .len_k = 200, .dim = 32, .dim_v = 32});
  expect_matches_oracle(in);
}

TEST(HeadGroups, OtherThanAMultipleIsRefused) {
  for (auto [heads_q, heads_k] : {std::pair{33, 2}, {3, 2}, {1, 2}, {9, 7}})
    expect_refused(dense({.heads_q = heads_q, .heads_k = heads_k, .len_q = 4, .len_k = 4}).attention, "heads");
  // An empty problem must not divide by 0.
  expect_refused(dense({.batch = 7, .heads_q = 9, .heads_k = 7, .len_q = 0, .len_k = 0, .dtype = DType::f16}).attention,
                 "heads");
}

TEST(HeadSizes, QueryAndValueSizesDiffer) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto [dim, dim_v] :
         {std::pair{128, 96}, {128, 8}, {128, 120}, {192, 128}, {64, 128}, {8, 200}, {1, 33}, {33, 1}}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " D=" << dim << " Dv=" << dim_v);
      Inputs in =
          dense({.heads_q = 2, .heads_k = 1, .len_q = 40, .len_k = 70, .dim = dim, .dim_v = dim_v, .dtype = dtype});
      in.attention.causal = true;
      expect_matches_oracle(in);
    }
}

TEST(HeadSizes, OddAndLargeOnes) {
  for (DType dtype : kFloatTypes)
    for (int64_t dim : {1, 2, 3, 7, 40, 72, 80, 96, 120, 132, 192, 224, 256, 512}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " D=" << dim);
      Inputs in =
          dense({.heads_q = 2, .heads_k = 2, .len_q = 19, .len_k = 67, .dim = dim, .dim_v = dim, .dtype = dtype});
      if (on_cuda() && dim > 256) {
        expect_refused(in.attention, "512", CUFLASH_UNSUPPORTED);
      } else {
        expect_matches_oracle(in);
      }
    }
}

TEST(HeadSizes, LargeOverSeveralTiles) {
  Inputs in =
      dense({.heads_q = 2, .heads_k = 2, .len_q = 256, .len_k = 256, .dim = 256, .dim_v = 256, .dtype = DType::bf16});
  in.attention.causal = true;
  expect_matches_oracle(in);
}

// A padded head size must not enter the scale.
TEST(HeadSizes, DefaultScaleIsThatOfTheRealSize) {
  for (int64_t dim : {1, 7, 40, 65}) {
    Inputs in = dense({.len_q = 10, .len_k = 20, .dim = dim});
    const Results implied = run(in);
    in.attention.scale = 1 / std::sqrt(static_cast<double>(dim));
    EXPECT_TRUE(same_bits(run(in), implied)) << "D=" << dim;
  }
}

// Lengths around every power of two a tile may have.
TEST(Lengths, AroundTileEdges) {
  for (int64_t length : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 197, 255, 257}) {
    SCOPED_TRACE(length);
    Inputs in = dense({.len_q = length, .len_k = length});
    expect_matches_oracle(in);
    Inputs few_queries = dense({.heads_q = 3, .heads_k = 1, .len_q = 3, .len_k = length});
    expect_matches_oracle(few_queries);
    Inputs few_keys = dense({.heads_q = 3, .heads_k = 1, .len_q = length, .len_k = 3});
    expect_matches_oracle(few_keys);
  }
}

}  // namespace
}  // namespace cuflash::test
