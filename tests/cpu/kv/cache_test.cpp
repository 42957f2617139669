// Attention over a KV cache on the CPU: every layout and option against the oracle, and changes that may not affect any bit.
#include <algorithm>
#include <new>
#include <string>

#include "tests/shared/cached_sequences.h"
#include "tests/shared/guarded_bytes.h"
#include "tests/shared/tested_isas.h"

namespace cuflash::test {
namespace {

// Runs on every instruction set.
class CacheIsa : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { cpu::force_isa(GetParam()); }
  void TearDown() override { cpu::force_isa(nullptr); }
};

struct Place {
  Order order;
  int64_t page_size;
};
std::vector<Place> places() {
  std::vector<Place> all;
  for (const Order order : {Order::bshd, Order::bhsd})
    for (const int64_t page_size : {0, 1, 3, 16, 64, 256}) all.push_back({order, page_size});
  return all;
}
std::string words(const Place& place) {
  return (place.order == Order::bshd ? "bshd, pages of " : "bhsd, pages of ") + std::to_string(place.page_size);
}

// Three sequences, one empty before the append and one without left padding.
CacheSpec some_sequences(DType dtype) {
  CacheSpec s;
  s.dtype = dtype;
  s.heads_q = 4, s.heads_k = 2, s.dim = 24, s.dim_v = 20;
  s.rows = {70, 5, 300}, s.leftpad = {3, 5, 0}, s.queries = {2, 1, 3}, s.fresh = {2, 1, 5};
  return s;
}

TEST_P(CacheIsa, EveryTypeAndPlace) {
  for (const DType dtype : kFloatTypes)
    for (const Place& place : places()) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + words(place));
      CacheSpec s = some_sequences(dtype);
      s.order = place.order, s.page_size = place.page_size, s.batch_idx = true;
      s.rotary = 16;
      CachedSequences(s).check();
    }
}

// Enough queries for panels, at the same positions.
TEST_P(CacheIsa, ManyQueries) {
  for (const DType dtype : kFloatTypes)
    for (const Place& place : places()) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + words(place));
      CacheSpec s = some_sequences(dtype);
      s.order = place.order, s.page_size = place.page_size;
      s.rows = {70, 5, 320}, s.queries = {60, 33, 40}, s.fresh = {20, 33, 0};
      s.window_left = 50;
      CachedSequences(s).check();
    }
}

TEST(Cache, QueriesAndNewRowsDensePaddedAndPacked) {
  for (const Batching queries : {Batching::dense, Batching::padded, Batching::packed})
    for (const Batching fresh : {Batching::dense, Batching::padded, Batching::packed})
      for (const int32_t most : {2, 40})
        for (const int64_t page_size : {0, 7}) {
          SCOPED_TRACE(::testing::Message() << static_cast<int>(queries) << " " << static_cast<int>(fresh) << " "
                                            << most << " pages of " << page_size);
          CacheSpec s = some_sequences(DType::f32);
          s.page_size = page_size, s.queries_as = queries, s.fresh_as = fresh;
          s.rows = {70, 50, 300};
          s.queries =
              queries == Batching::dense ? std::vector<int32_t>{most, most, most} : std::vector<int32_t>{most, 0, 1};
          s.fresh = fresh == Batching::dense ? std::vector<int32_t>{3, 3, 3} : std::vector<int32_t>{0, 9, 1};
          s.rotary = 8;
          CachedSequences(s).check();
        }
}

TEST(Cache, Rotary) {
  for (const DType dtype : kFloatTypes)
    for (const DType table : {dtype, DType::f32})
      for (const bool interleaved : {false, true})
        for (const bool one_position : {false, true})
          for (const int64_t dim : {2, 20, 70}) {
            SCOPED_TRACE(::testing::Message()
                         << name_of(dtype) << " " << name_of(table) << interleaved << one_position << " " << dim);
            CacheSpec s = some_sequences(dtype);
            s.dim = 72, s.rows = {9, 5, 40}, s.queries = {4, 1, 20};
            s.rotary = dim, s.rotary_type = table, s.interleaved = interleaved, s.one_position = one_position;
            CachedSequences(s).check();
          }
}

TEST(Cache, ScoreOptions) {
  for (const std::vector<int32_t>& queries : {std::vector<int32_t>{2, 1, 3}, {40, 3, 1}})
    for (const int64_t page_size : {0, 5, 16})
      for (const int64_t left : {-1, 0, 40})
        for (const bool causal : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << queries[0] << " queries, pages of " << page_size << ", window " << left << causal);
          CacheSpec s = some_sequences(DType::f32);
          s.rows = {70, 60, 600}, s.queries = queries, s.page_size = page_size;
          s.causal = causal, s.window_left = left, s.window_right = causal ? -1 : 2;
          CachedSequences(s).check();
          s.softcap = 8, s.alibi = true, s.sink = true;
          CachedSequences(s).check();
        }
}

// More queries than keys: the first see nothing.
TEST(Cache, RowsThatSeeNothing) {
  for (const int32_t queries : {3, 40}) {
    CacheSpec s;
    s.rows = {0, 1, 0}, s.queries = {queries, queries, queries}, s.fresh = {0, 1, 2};
    CachedSequences(s).check();
    s.sink = true;
    CachedSequences(s).check();
    s.fresh = {};
    CachedSequences(s).check();
  }
}

TEST_P(CacheIsa, VAsASliceOfK) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t page_size : {0, 1, 64}) {
      CacheSpec s;
      s.dtype = dtype, s.heads_q = 8, s.dim = 576, s.dim_v = 512, s.v_in_k = true, s.page_size = page_size;
      s.rows = {100, 17}, s.queries = {2, 1}, s.fresh = {2, 1};
      CachedSequences(s).check();
      s.queries = {2, 20}, s.rows = {100, 30};
      CachedSequences(s).check();
    }
}

// The layout does not matter: the same numbers are added in the same order.
TEST_P(CacheIsa, PagesOfAnySizeGiveTheSameBits) {
  for (const DType dtype : kFloatTypes)
    for (const int32_t queries : {1, 3, 40})
      for (const int32_t pad : {0, 6}) {
        CacheSpec s;
        s.dtype = dtype, s.heads_q = 4, s.heads_k = 2, s.dim = 16, s.dim_v = 13;
        s.rows = {100, 550}, s.queries = {queries, queries}, s.fresh = {1, 2}, s.leftpad = {pad, 0};
        s.window_left = 400;
        const CacheResult contiguous = CachedSequences(s).run();
        for (const Place& place : places())
          for (const bool pages_in_order : {false, true}) {
            if (pages_in_order && place.page_size != 16 && place.page_size != 3) continue;
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << queries << " queries, pad " << pad << ", "
                                              << words(place) << pages_in_order);
            s.order = place.order, s.page_size = place.page_size, s.pages_in_order = pages_in_order;
            EXPECT_TRUE(same_bits(CachedSequences(s).run(), contiguous));
          }
      }
}

// Keys 20 to 23, in column 5. Column 4 has no page, and nothing can be read before page 0.
TEST(Cache, PagesBeforeTheWindowAreNotRead) {
  constexpr int64_t kPages = 128, kPageSize = 4, kHeads = 2, kDim = 16;
  constexpr size_t kBytes = kPages * kPageSize * kHeads * kDim * sizeof(float);
  static_assert(kBytes % 65536 == 0);  // whole pages of memory
  const GuardedBytes k(kBytes), v(kBytes);
  std::fill_n(reinterpret_cast<float*>(v.data()), kBytes / sizeof(float), 3.0f);
  const std::vector<float> q(kHeads * kDim, 1);
  std::vector<float> o(q.size());
  const std::vector<int32_t> lengths{24}, table{-1, -1, -1, -1, -1, 0};
  CacheTensors t;
  t.k = bshd(reinterpret_cast<float*>(k.data()), kPages, kPageSize, kHeads, kDim);
  t.v = bshd(reinterpret_cast<float*>(v.data()), kPages, kPageSize, kHeads, kDim);
  t.seqlens = contiguous(lengths.data(), 1), t.block_table = contiguous(table.data(), 1, 6);
  t.o = bshd(o.data(), 1, 1, kHeads, kDim);
  flash_attention_with_cache({.q = bshd(q.data(), 1, 1, kHeads, kDim), .k = {}, .v = {}, .window_left = 3}, t);
  EXPECT_EQ(o, std::vector<float>(o.size(), 3));
}

// A task has several heads of a page, one row each, because there are so many heads and keys. The automatic number of
// splits depends on that.
TEST_P(CacheIsa, PagesOfSeveralHeadsGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CacheSpec s;
    s.dtype = dtype, s.heads_q = s.heads_k = 8, s.dim = 40, s.dim_v = 16;
    s.rows = {1031}, s.queries = {1}, s.num_splits = 3;
    const CacheResult contiguous = CachedSequences(s).run();
    for (const Place& place : places()) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + words(place));
      s.order = place.order, s.page_size = place.page_size;
      EXPECT_TRUE(same_bits(CachedSequences(s).run(), contiguous));
    }
  }
}

TEST(Cache, AnyNumberOfSplits) {
  for (const int64_t page_size : {0, 16, 100})
    for (const int32_t splits : {1, 2, 3, 5, 8, 1000}) {
      SCOPED_TRACE(::testing::Message() << splits << " splits, pages of " << page_size);
      CacheSpec s;
      s.rows = {2100, 40, 700}, s.queries = {2, 2, 1}, s.heads_q = 3, s.page_size = page_size;
      s.num_splits = splits;
      CachedSequences(s).check();
      s.window_left = 300, s.sink = true;
      CachedSequences(s).check();
    }
}

// Others may be longer, have more queries, or so many that they are computed in panels.
TEST_P(CacheIsa, WithFixedSplitsTheRestOfTheBatchChangesNoBit) {
  for (const DType dtype : kFloatTypes)
    for (const Batching queries : {Batching::padded, Batching::packed})
      for (const int64_t page_size : {0, 16})
        for (const int32_t splits : {1, 3}) {
          CacheSpec s;
          s.dtype = dtype, s.heads_q = 4, s.heads_k = 2, s.dim = 16, s.dim_v = 16, s.page_size = page_size;
          s.rows = {700, 40, 300, 100, 0}, s.queries = {1, 2, 50, 0, 3}, s.fresh = {1, 2, 3, 0, 3};
          s.queries_as = queries, s.num_splits = splits;
          CachedSequences all(s);
          const CacheResult together = all.run();
          for (int64_t b = 0; b < s.batch(); ++b) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " sequence " << b << ", " << splits << " splits");
            EXPECT_TRUE(same_bits(all.part_of(together, b), all.run_alone(b)));
          }
        }
}

TEST(Cache, AnyNumberOfThreadsGivesTheSameBits) {
  for (const int64_t page_size : {0, 16, 5}) {
    CacheSpec s;
    s.heads_q = 6, s.heads_k = 3, s.dim = 32, s.dim_v = 32, s.page_size = page_size, s.rotary = 32;
    s.rows = {1500, 80, 500}, s.queries = {2, 70, 1}, s.fresh = {2, 70, 40};
    CachedSequences sequences(s);
    const CacheResult one = sequences.check({.num_threads = 1});
    for (const int threads : {2, 4, 16})
      EXPECT_TRUE(same_bits(sequences.run({.num_threads = threads}), one)) << threads;
  }
}

// A block that ends where the size says it does.
struct Block {
  explicit Block(size_t bytes) : data(::operator new (bytes, std::align_val_t{64})) {}
  ~Block() { ::operator delete (data, std::align_val_t{64}); }
  Block(const Block&) = delete;
  void* data;
};

size_t workspace_of(CachedSequences& sequences, int threads) {
  sequences.run();
  Buffer o(sequences.o_layout()), lse(sequences.lse_layout());
  return workspace_size(sequences.attention(), sequences.tensors(o, lse), {.num_threads = threads});
}

// Equal numbers of queries may share panels, which depends on the strides of the queries, or on those after rotation.
TEST(Cache, TheWorkspaceItAsksForIsEnough) {
  for (const auto& [longest, queries, equal] :
       {std::tuple<int32_t, int32_t, bool>{2000, 1, false}, {2000, 40, false}, {2000, 40, true}, {200, 40, true}})
    for (const int64_t page_size : {0, 16, 3})
      for (const int64_t rotary : {0, 8}) {
        CacheSpec s;
        s.heads_q = 4, s.heads_k = 2, s.rotary = rotary, s.page_size = page_size;
        s.rows = {longest, 90}, s.queries = {queries, equal ? queries : 1};
        if (equal) s.queries_as = Batching::dense;
        CachedSequences sequences(s);
        const size_t bytes = workspace_of(sequences, 2);
        const Block block(bytes);
        sequences.check({.num_threads = 2, .workspace = block.data, .workspace_size = bytes});
        EXPECT_THROW(sequences.run({.num_threads = 2, .workspace = block.data, .workspace_size = bytes - 1}),
                     FlashAttentionError);
      }
}

// A caller asks once and lets its sequences grow.
TEST(Cache, TheWorkspaceDoesNotDependOnLengths) {
  CacheSpec s;
  s.rows = {2000, 50}, s.queries = {3, 40}, s.rotary = 8;
  CachedSequences one(s);
  s.rows = {60, 2000}, s.queries = {40, 1};
  CachedSequences other(s);
  EXPECT_EQ(workspace_of(one, 2), workspace_of(other, 2));
}

TEST(Cache, TileCountsAreThoseOfBothPaths) {
  CacheSpec s;
  s.rows = {1000, 600}, s.queries = {1, 40}, s.causal = false;
  TileStats both{};
  CachedSequences(s).run({.tile_stats = &both});
  TileStats few{}, many{};
  CacheSpec one = s;
  one.rows = {1000}, one.queries = {1};
  CachedSequences(one).run({.tile_stats = &few});
  one.rows = {600}, one.queries = {40};
  CachedSequences(one).run({.tile_stats = &many});
  EXPECT_EQ(both.visited, few.visited + many.visited);
  EXPECT_EQ(both.masked, few.masked + many.masked);
  EXPECT_EQ(both.skipped, few.skipped + many.skipped);
  EXPECT_GT(few.visited, 0);
  EXPECT_GT(many.visited, 0);
}

TEST(Cache, ExplainNamesThePath) {
  CacheSpec s;
  s.rows = {1000, 600}, s.queries = {1, 40}, s.fresh = {1, 1}, s.rotary = 8, s.page_size = 16;
  CachedSequences sequences(s);
  sequences.run();
  Buffer o(sequences.o_layout()), lse(sequences.lse_layout());
  const std::string text = explain(sequences.attention(), sequences.tensors(o, lse));
  for (const char* part : {"attend_cache", "new keys are rotated and written", "few queries", "panels", "pages of 16"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Each, CacheIsa, testing::ValuesIn(tested_isas()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cuflash::test
