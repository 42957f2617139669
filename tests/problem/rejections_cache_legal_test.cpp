// Calls over a KV cache that look wrong but are legal, and workspace queries.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/problem/rejections_cache.h"

namespace cuflash::rejections {
namespace {

TEST(LegalCacheCalls, AValidCallIsServed) {
  for_each_kind([](const CacheKind& kind) {
    CacheCall call(kind);
    EXPECT_EQ(call.run(), CUFLASH_OK) << describe(kind) << ": " << cuflash_last_error();
    EXPECT_FALSE(call.outputs_untouched());
    EXPECT_EQ(call.explain(), CUFLASH_OK) << cuflash_last_error();
  });
}

TEST(LegalCacheCalls, ALongerStructWithNothingSetIsServed) {
  CacheCall call({});
  std::byte* longer = call.scratch(sizeof call.cache + 24);
  call.cache.struct_size = sizeof call.cache + 24;
  std::memcpy(longer, &call.cache, sizeof call.cache);
  call.cache_argument = reinterpret_cast<const cuflash_cache_tensors*>(longer);
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

// Unused entries: pages of no row, of hidden rows, or of padding.
TEST(LegalCacheCalls, UnusedTableEntriesMayBeAnything) {
  CacheCall call({.new_rows = NewRows::none, .paged = true});
  call.attention.window_left = 0, call.attention.causal = 1;
  call.integers("seqlens")[0] = 9, call.integers("seqlens")[1] = 12;
  int32_t* table = call.integers("block_table");
  table[0] = kMin, table[1] = 2, table[2] = 3;  // its three queries are rows 6 to 8
  table[3] = kMax, table[4] = -1, table[5] = 4;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(LegalCacheCalls, SequencesMayReadOneEntry) {
  CacheCall call({.new_rows = NewRows::none});
  call.integers("batch_idx")[1] = call.integers("batch_idx")[0];
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  CacheCall padded({.new_rows = NewRows::padded});
  padded.integers("batch_idx")[1] = padded.integers("batch_idx")[0];
  padded.integers("seqlens_new")[0] = padded.integers("seqlens_new")[1] = 0;
  EXPECT_EQ(padded.run(), CUFLASH_OK) << cuflash_last_error();
}

// A cache that is only read may repeat: one prefix for all heads, or for all entries.
TEST(LegalCacheCalls, ACacheThatIsOnlyReadMayRepeat) {
  for (const int d : {0, 1}) {
    CacheCall call({.new_rows = NewRows::none});
    call.cache.k.stride[d] = call.cache.v.stride[d] = 0;
    EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  }
}

// The stride of an extent of 1 is meaningless, also for deciding whether v is a slice of k.
TEST(LegalCacheCalls, StridesAlongOneElementMeanNothing) {
  CacheCall call({});
  cuflash_mutable_tensor &k = call.cache.k, &v = call.cache.v;
  v.data = k.data;
  std::memcpy(v.stride, k.stride, sizeof k.stride);
  call.slot("v_new")->remove();
  call.attention.q.shape[1] = call.cache.o.shape[1] = call.cache.lse.shape[1] = 2;
  call.attention.alibi_slopes.shape[1] = call.attention.sink.shape[0] = 2;
  k.shape[1] = v.shape[1] = call.cache.k_new.shape[1] = 1;
  k.stride[1] = 12345, v.stride[1] = 54321;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(LegalCacheCalls, AWorkspaceMustHaveTheQueriedSize) {
  for_each_kind([](const CacheKind& kind) {
    CacheCall call(kind);
    size_t bytes = 0;
    ASSERT_EQ(call.workspace_size(&bytes), CUFLASH_OK) << cuflash_last_error();
    ASSERT_GT(bytes, 0u);
    call.execution.workspace = call.scratch(bytes);
    call.execution.workspace_size = bytes - 1;
    const cuflash_status status = call.run();
    EXPECT_EQ(
        why_not_refused(call.outputs_untouched(), {"workspace", {text(bytes), text(bytes - 1)}}, "the call", status),
        "")
        << describe(kind);
    call.execution.workspace_size = bytes;
    EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  });
}

TEST(LegalCacheCalls, TheQueryNeedsAPlaceForItsAnswer) {
  const CacheCall call({});
  EXPECT_EQ(call.workspace_size(nullptr), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(cuflash_last_error()).rfind("bytes:", 0), 0u) << cuflash_last_error();
}

TEST(LegalCacheCalls, NoQueriesNoBatchAndNoRoomAreLegal) {
  CacheCall no_queries({.queries = Mode::padded});
  no_queries.integers("seqlens_q")[0] = no_queries.integers("seqlens_q")[1] = 0;
  EXPECT_EQ(no_queries.run(), CUFLASH_OK) << cuflash_last_error();

  CacheCall no_batch({.new_rows = NewRows::none});
  for (const char* name : {"q", "o", "lse", "seqlens", "leftpad", "batch_idx", "alibi_slopes"})
    no_batch.slot(name)->shape[0] = 0;
  EXPECT_EQ(no_batch.run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_TRUE(no_batch.outputs_untouched());

  CacheCall no_room({.new_rows = NewRows::none});
  for (const char* name : {"rotary_cos", "rotary_sin"}) no_room.slot(name)->remove();
  for (const char* name : {"k", "v"}) no_room.slot(name)->shape[2] = 0, no_room.slot(name)->set_data(nullptr);
  for (const char* name : {"seqlens", "leftpad"}) no_room.integers(name)[0] = no_room.integers(name)[1] = 0;
  EXPECT_EQ(no_room.run(), CUFLASH_OK) << cuflash_last_error();
}

}  // namespace
}  // namespace cuflash::rejections
