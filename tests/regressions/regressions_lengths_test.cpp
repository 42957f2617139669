// Packed (cu_seqlens) and padded (seqlens) sequences: empty ones, slack, and garbage beyond the lengths.
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

TEST(Packed, CausalWithFewerKeysThanQueries) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in =
        packed({.len_q = 256, .len_k = 3, .dim = 32, .dim_v = 32, .dtype = dtype}, {0, 76, 110, 256}, {0, 1, 2, 3});
    fill_normal(in.q.view(), 11, 3), fill_normal(in.k.view(), 12, 3), fill_normal(in.v.view(), 13, 3);
    in.attention.causal = true;
    const Results r = expect_matches_oracle(in);
    EXPECT_TRUE(all_equal(part(r.dq, 0, 75 * 32), 0));
  }
}

TEST(Packed, SingleQueriesBetweenEmptySequences) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = packed({.heads_q = 9, .heads_k = 3, .len_q = 2, .len_k = 8, .dim = 64, .dim_v = 64, .dtype = dtype},
                       {0, 0, 1, 1, 2}, {0, 0, 3, 3, 8});
    in.attention.max_seqlen_q = 1;
    expect_matches_oracle(in);
    Inputs last =
        packed({.heads_q = 21, .heads_k = 7, .len_q = 1, .len_k = 1, .dim = 120, .dim_v = 120, .dtype = dtype},
               {0, 0, 0, 0, 1}, {0, 0, 0, 0, 1});
    last.attention.max_seqlen_q = 1;
    last.attention.causal = true;
    expect_matches_oracle(last);
  }
}

TEST(Packed, EmptyOnOneSideOnly) {
  Inputs in = packed({.heads_q = 2, .heads_k = 2, .len_q = 90, .len_k = 120}, {0, 20, 20, 90}, {0, 0, 50, 120});
  for (bool causal : {false, true}) {
    in.attention.causal = causal;
    const Results r = expect_matches_oracle(in);
    EXPECT_TRUE(all_equal(part(r.o, 0, 20 * 2 * 8), 0));
    EXPECT_TRUE(all_equal(part(r.dk, 0, 50 * 2 * 8), 0));
  }
}

TEST(Packed, NoRowsAtAll) {
  Inputs none = packed({.len_q = 0, .len_k = 64}, {0, 0, 0}, {0, 30, 64});
  const Results r = expect_matches_oracle(none);
  EXPECT_TRUE(all_equal(r.dk, 0) && r.dk.size() == 64u * 8);
  Inputs no_keys = packed({.len_q = 64, .len_k = 0}, {0, 30, 64}, {0, 0, 0});
  EXPECT_TRUE(all_equal(expect_matches_oracle(no_keys).lse, -kInf));
  Inputs no_batch = packed({.len_q = 5, .len_k = 5}, {0}, {0});
  expect_matches_oracle(no_batch);
}

// The rows after the last sequence hold NaN in every input; run() checks that those of the outputs stay untouched.
TEST(Packed, BuffersLongerThanTheSequences) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in =
        packed({.heads_q = 16, .heads_k = 1, .len_q = 24, .len_k = 24, .dim = 128, .dim_v = 128, .dtype = dtype},
               {0, 9, 21}, {0, 9, 21});
    in.attention.causal = true;
    expect_matches_oracle(in);
  }
}

// Each of them too long to be decoded alone, with sums in another order.
TEST(Packed, EqualsEachSequenceAlone) {
  const std::vector<int32_t> cu_q{0, 70, 101, 200}, cu_k{0, 10, 150, 290};
  Inputs in = packed({.heads_q = 4, .heads_k = 2, .len_q = 200, .len_k = 290, .dim = 16, .dim_v = 16}, cu_q, cu_k);
  in.attention.causal = true;
  const Results all = expect_matches_oracle(in);
  for (size_t b = 0; b < 3; ++b) {
    const auto one = [&](ConstTensor t, const std::vector<int32_t>& cu) {
      t = narrow(t, 0, cu[b], cu[b + 1] - cu[b]);
      return ConstTensor{t.data, t.dtype, 4, {1, t.shape[1], t.shape[0], t.shape[2]}, {0, t.stride[1], t.stride[0], 1}};
    };
    const Attention alone{
        .q = one(in.attention.q, cu_q), .k = one(in.attention.k, cu_k), .v = one(in.attention.v, cu_k), .causal = true};
    const Results r = run(alone, one(in.dout.view(), cu_q));
    for (int64_t h = 0; h < 4; ++h) {
      const int64_t rows = cu_q[b + 1] - cu_q[b];
      EXPECT_TRUE(same_bits(part(r.lse, h * rows, rows), part(all.lse, h * 200 + cu_q[b], rows))) << b << " " << h;
    }
  }
}

TEST(Packed, MalformedOffsetsAreRefused) {
  const Sizes sizes{.len_q = 10, .len_k = 10};
  const auto refuse = [&](const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k,
                          const std::string& argument) {
    Inputs in = packed(sizes, {0, 5, 10}, {0, 5, 10});
    in.attention.cu_seqlens_q = contiguous(cu_q.data(), cu_q.size());
    in.attention.cu_seqlens_k = contiguous(cu_k.data(), cu_k.size());
    expect_refused(in.attention, argument);
  };
  refuse({1, 5, 10}, {0, 5, 10}, "cu_seqlens_q");   // does not start with 0
  refuse({0, 5, 10}, {-1, 5, 10}, "cu_seqlens_k");  // nor this
  refuse({0, 5, 11}, {0, 5, 10}, "cu_seqlens_q");   // ends beyond the buffer
  refuse({0, 5, 10}, {0, 5, 11}, "cu_seqlens_k");
  refuse({0, 7, 5}, {0, 5, 10}, "cu_seqlens_q");  // decreases
  refuse({0, 5, 10}, {0, 11, 10}, "cu_seqlens_k");
  refuse({0, 5, 10}, {0, 10}, "cu_seqlens_k");  // another batch
  refuse({}, {}, "cu_seqlens_q");
}

TEST(Packed, OffsetsOfAnotherTypeOrBeyondTheMaximumAreRefused) {
  Inputs in = packed({.len_q = 10, .len_k = 10}, {0, 4, 10}, {0, 4, 10});
  in.attention.max_seqlen_q = 5;
  expect_refused(in.attention, "max_seqlen_q");
  in.attention.max_seqlen_q = 6;
  expect_matches_oracle(in);
  const std::vector<double> wide{0, 5, 10};  // 8 bytes per element, like int64 offsets
  in.attention.cu_seqlens_k = contiguous(wide.data(), 3);
  expect_refused(in.attention, "cu_seqlens_k");
}

TEST(Padded, GarbageBehindTheLengthsReachesNothing) {
  for (double garbage : {kNan, kInf, -kInf})
    for (DType dtype : kFloatTypes) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << garbage);
      Inputs cache = padded(
          {.batch = 4, .heads_q = 8, .heads_k = 8, .len_q = 1, .len_k = 128, .dim = 64, .dim_v = 64, .dtype = dtype},
          {1, 1, 1, 1}, {32, 64, 96, 48}, garbage);
      cache.attention.causal = true;
      expect_matches_oracle(cache);
      Inputs tiny = padded({.batch = 2, .len_q = 1, .len_k = 3, .dtype = dtype}, {1, 1}, {1, 3}, garbage);
      expect_matches_oracle(tiny);
      Inputs both = padded({.batch = 3, .heads_q = 4, .heads_k = 2, .len_q = 70, .len_k = 90, .dtype = dtype},
                           {70, 0, 33}, {5, 90, 0}, garbage);
      expect_matches_oracle(both);
    }
}

TEST(Padded, OutputsBehindTheLengthsAreZero) {
  Inputs in = padded({.batch = 2, .len_q = 40, .len_k = 100}, {7, 0}, {65, 0});
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(part(r.o, 7 * 8, 73 * 8), 0) && all_equal(part(r.lse, 7, 73), -kInf));
  EXPECT_TRUE(all_equal(part(r.dq, 7 * 8, 73 * 8), 0));
  EXPECT_TRUE(all_equal(part(r.dk, 65 * 8, 135 * 8), 0) && all_equal(part(r.dv, 65 * 8, 135 * 8), 0));
}

// A row beyond the length adds nothing to the sink's gradient either, whatever its saved LSE.
TEST(Padded, SinkAndBiasGradientsIgnoreWhatIsBehindTheLengths) {
  Inputs in = padded({.batch = 2, .heads_q = 2, .heads_k = 2, .len_q = 30, .len_k = 70}, {30, 4}, {9, 70});
  const std::vector<float> sink{0.3f, 2.0f};
  Buffer bias(contiguous<void>(nullptr, DType::f32, 1, 2, 30, 70));
  fill_normal(bias.view(), 77);
  in.attention.sink = contiguous(sink.data(), 2);
  in.attention.bias = bias.view();
  expect_matches_oracle(in);
}

// A NaN key of a short sequence must not reach other rows in the gradient of a bias that sequences share.
TEST(Padded, NanOfAShortSequenceStaysOutOfTheRowsOfALongOne) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = padded({.batch = 2, .len_q = 20, .len_k = 9, .dtype = dtype}, {2, 20}, {9, 9});
    fill(narrow(narrow(in.k.view(), 0, 0, 1), 2, 5, 1), kNan);
    Buffer bias(contiguous<void>(nullptr, dtype == DType::f64 ? DType::f64 : DType::f32, 1, 1, 20, 9));
    fill_normal(bias.view(), 78);
    in.attention.bias = bias.view();
    expect_matches_oracle(in);
  }
}

// A query beyond the length shares registers with those before it, to which a NaN key belongs.
TEST(Padded, AVisibleNanStaysOutOfTheRowsBehindTheLengths) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = padded({.batch = 2, .len_q = 34, .len_k = 9, .dtype = dtype}, {33, 5}, {9, 7});
    fill(narrow(in.k.view(), 2, 4, 1), kNan);
    const Results r = expect_matches_oracle(in);
    EXPECT_TRUE(all_equal(part(r.dq, 33 * 8, 8), 0) && all_equal(part(r.dq, 39 * 8, 29 * 8), 0));
  }
}

// A cache is read up to its lengths, not to its capacity: the work, seen in the tile counts, follows the lengths.
TEST(Padded, LargeCacheWithShortLengths) {
  const std::vector<int32_t> used{1, 511, 512, 64, 65};
  Inputs in = padded({.batch = 5, .heads_q = 2, .heads_k = 1, .len_q = 1, .len_k = 131072, .dim = 4, .dim_v = 4},
                     {1, 1, 1, 1, 1}, used);
  TileStats stats{};
  Buffer o(bhsd<void>(nullptr, DType::f32, 5, 2, 1, 4)), lse(contiguous<void>(nullptr, DType::f32, 5, 2, 1));
  run_forward(in.attention, {.o = o.view(), .lse = lse.view()}, {.tile_stats = &stats});
  int64_t tiles = 0;
  for (int32_t length : used) tiles += 2 * ((length + stats.tile_k - 1) / stats.tile_k);
  EXPECT_EQ(stats.visited, tiles);
  expect_matches_oracle(in);
}

}  // namespace
}  // namespace cuflash::test
