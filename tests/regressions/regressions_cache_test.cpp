// Calls over a KV cache that broke other libraries: garbage in unused rows and pages, capacities far beyond the lengths,
// splits without keys, lengths at page edges, sizes of 0, and the rest of the batch.
#include <gtest/gtest.h>

#include "check/run/cache_run.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

using check::CacheCase;
using check::NewRows;
using check::Rotary;
using check::run_cache_case;

// One query per sequence against these rows, everything else simple.
CacheCase decode(const Sizes& sizes, const std::vector<int32_t>& rows, int64_t room) {
  CacheCase c;
  check::Case& p = c.plain;
  p.device = test_device();
  p.dtype = p.o_dtype = p.sink_dtype = sizes.dtype;
  p.batch = static_cast<int64_t>(rows.size());
  p.heads_q = sizes.heads_q, p.heads_k = sizes.heads_k, p.dim = sizes.dim, p.dim_v = sizes.dim_v;
  p.len_q = sizes.len_q;
  p.causal = true;
  p.data_seed = 7;
  c.rows = rows, c.room = room;
  p.lengths_k = rows;
  for (const int32_t length : rows) p.len_k = std::max<int64_t>(p.len_k, length);
  return c;
}

void append(CacheCase& c, int64_t count) {
  c.new_rows = NewRows::dense, c.len_new = count;
  for (int32_t& length : c.plain.lengths_k) length += static_cast<int32_t>(count);
  c.plain.len_k += count;
}

// After this, `room` is the room in the block table.
void cut_into_pages(CacheCase& c, int64_t page_size, int64_t unused_columns) {
  c.page_size = page_size;
  c.room = (c.longest() + page_size - 1) / page_size + unused_columns;
  c.spare = 3;
}

TEST(KvCache, RowsBehindTheLengthsReachNothing) {
  for (const DType dtype : kFloatTypes)
    for (const bool infinities : {false, true})
      for (const int64_t count : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << infinities << " " << count);
        CacheCase c =
            decode({.heads_q = 8, .heads_k = 8, .dim = 64, .dim_v = 64, .dtype = dtype}, {32, 64, 96, 48}, 128);
        c.plain.garbage = infinities;
        CacheCase tiny = decode({.dtype = dtype}, {1, 2}, 3);
        tiny.plain.garbage = infinities;
        if (count > 0) append(c, count), append(tiny, count);
        EXPECT_EQ(run_cache_case(c), "");
        EXPECT_EQ(run_cache_case(tiny), "");
        cut_into_pages(c, 16, 4), cut_into_pages(tiny, 2, 1);
        EXPECT_EQ(run_cache_case(c), "");
        EXPECT_EQ(run_cache_case(tiny), "");
      }
}

TEST(KvCache, CapacityFarBeyondTheLengths) {
  CacheCase c = decode({.heads_q = 2, .heads_k = 1, .dim = 4, .dim_v = 4}, {1, 511, 512, 64, 65}, 131072);
  EXPECT_EQ(run_cache_case(c), "");
  append(c, 1);
  c.rotary = Rotary::halves, c.rotary_dim = 4;
  EXPECT_EQ(run_cache_case(c), "");
  cut_into_pages(c, 16, 131072 / 16);
  EXPECT_EQ(run_cache_case(c), "");
}

TEST(KvCache, SplitsWithoutKeys) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t len_q : {1, 40})
      for (const int32_t splits : {1, 2, 3, 8, 64, 1000}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << len_q << " " << splits);
        CacheCase c = decode({.heads_q = 4, .heads_k = 2, .len_q = len_q, .dim = 16, .dim_v = 16, .dtype = dtype},
                             {0, 1, 2, 5, 513}, 520);
        c.num_splits = splits;
        EXPECT_EQ(run_cache_case(c), "");
        c.plain.window_left = 3;  // most splits have no visible keys
        EXPECT_EQ(run_cache_case(c), "");
        cut_into_pages(c, 16, 2);
        EXPECT_EQ(run_cache_case(c), "");
      }
}

TEST(KvCache, LengthsAtTheEdgesOfPages) {
  for (const int64_t page : {1, 16, 64, 256})
    for (const int64_t count : {0, 1, 3})
      for (const bool rotated : {false, true}) {
        SCOPED_TRACE(::testing::Message() << page << " " << count << " " << rotated);
        const auto edge = static_cast<int32_t>(page);
        CacheCase c = decode({.heads_q = 6, .heads_k = 2, .dim = 24, .dim_v = 24, .dtype = DType::f16},
                             {2 * edge - 1, 2 * edge, 2 * edge + 1, edge, 0}, 0);
        if (rotated) c.rotary = Rotary::interleaved, c.rotary_dim = 16;
        if (rotated && count == 0) c.rows.back() = c.plain.lengths_k.back() = 1;  // a query needs a position
        if (count > 0) append(c, count);
        cut_into_pages(c, page, 7);
        EXPECT_EQ(run_cache_case(c), "");
      }
}

TEST(KvCache, TheRestOfTheBatchChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t len_q : {1, 5, 90})
      for (const int64_t page : {0, 16}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << len_q << " " << page);
        const int32_t longest = len_q > 5 ? 400 : 1900;
        CacheCase c = decode({.heads_q = 2, .heads_k = 1, .len_q = len_q, .dim = 8, .dim_v = 8, .dtype = dtype},
                             {longest, 300, 0, 200}, 2000);
        append(c, len_q);
        if (page > 0) cut_into_pages(c, page, 1);
        c.num_splits = 4;
        for (const int64_t alone : {0, 1}) {
          c.alone = alone;
          EXPECT_EQ(run_cache_case(c), "");
        }
      }
}

// Neither does a sequence with so many queries that it takes another path.
TEST(KvCache, OtherSequencesMayHaveMoreQueries) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t page : {0, 16}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << page);
      CacheCase c = decode({.heads_q = 2, .heads_k = 1, .len_q = 60, .dim = 24, .dim_v = 24, .dtype = dtype},
                           {700, 300, 90, 0}, 2000);
      c.plain.mode = check::Mode::packed, c.plain.lengths_q = {1, 60, 3, 0};
      append(c, 60);
      if (page > 0) cut_into_pages(c, page, 1);
      c.num_splits = 2;
      for (const int64_t alone : {0, 1, 2}) {
        c.alone = alone;
        EXPECT_EQ(run_cache_case(c), "");
      }
    }
}

TEST(KvCache, QueriesBeforeTheFirstKeySeeNothing) {
  for (const int64_t len_q : {2, 20, 70}) {
    CacheCase c = decode({.heads_q = 2, .heads_k = 1, .len_q = len_q}, {1, 0, 5, 16}, 32);
    EXPECT_EQ(run_cache_case(c), "");
    cut_into_pages(c, 4, 0);
    c.num_splits = 3;
    EXPECT_EQ(run_cache_case(c), "");
  }
}

TEST(KvCache, SizesOfZero) {
  const Sizes sizes{.heads_q = 4, .heads_k = 2};
  for (const int64_t page : {0, 16})
    for (const int32_t splits : {0, 3})
      for (const std::vector<int32_t>& rows :
           {std::vector<int32_t>{}, std::vector<int32_t>{0, 0}, std::vector<int32_t>{9}}) {
        SCOPED_TRACE(::testing::Message() << page << " " << splits << " " << rows.size());
        CacheCase c = decode(sizes, rows, rows == std::vector<int32_t>{9} ? 9 : 0);  // no batch, no room, no slack
        c.num_splits = splits;
        if (page > 0) cut_into_pages(c, page, 0), c.spare = 0;
        EXPECT_EQ(run_cache_case(c), "");
        c.plain.len_q = 0;
        EXPECT_EQ(run_cache_case(c), "");
      }
  CacheCase only_appends = decode(sizes, {3, 0}, 8);
  only_appends.plain.len_q = 0;
  append(only_appends, 5);
  EXPECT_EQ(run_cache_case(only_appends), "");
}

// A prompt in one piece or in several: the cache holds the same bits, and the last queries get the same result.
TEST(KvCache, AppendingInPiecesIsAppendingAtOnce) {
  constexpr int64_t kRows = 20, kHeads = 2, kDim = 8;
  Buffer q(bshd<void>(nullptr, DType::bf16, 1, kRows, kHeads, kDim)), rows(q.view()), v_rows(q.view());
  fill_normal(q.view(), 1), fill_normal(rows.view(), 2), fill_normal(v_rows.view(), 3);
  Buffer cos(contiguous<void>(nullptr, DType::f32, kRows, kDim / 2)), sin(cos.view());
  fill_normal(cos.view(), 4), fill_normal(sin.view(), 5);
  const std::vector<int32_t> table{4, 0, 3, 1, 2};

  const auto attend = [&](const std::vector<int64_t>& pieces) {
    Buffer k(bshd<void>(nullptr, DType::bf16, 5, 4, kHeads, kDim)), v(k.view());
    Buffer o(q.view());
    int32_t before = 0;
    for (const int64_t count : pieces) {
      const auto piece = [&](const auto& t) { return narrow(t, 2, before, count); };
      CacheTensors t{.k = k.view(), .v = v.view(), .seqlens = contiguous(&before, 1), .o = piece(o.view())};
      t.block_table = contiguous(table.data(), 1, 5);
      t.k_new = piece(rows.view()), t.v_new = piece(v_rows.view());
      t.rotary_cos = cos.view(), t.rotary_sin = sin.view();
      t.num_splits = 1;
      check::attend_cache(test_device(), {.q = piece(q.view()), .k = {}, .v = {}, .causal = true}, t, {});
      before += static_cast<int32_t>(count);
    }
    return std::vector{values_of(k.view()), values_of(v.view()), values_of(o.view())};
  };
  const auto at_once = attend({kRows}), in_pieces = attend({7, 1, 1, 3, 8});
  EXPECT_TRUE(same_bits(at_once[0], in_pieces[0]));
  EXPECT_TRUE(same_bits(at_once[1], in_pieces[1]));
  for (size_t n = 0; n < at_once[2].size(); ++n) EXPECT_NEAR(at_once[2][n], in_pieces[2][n], 0.02) << n;
}

}  // namespace
}  // namespace cuflash::test
