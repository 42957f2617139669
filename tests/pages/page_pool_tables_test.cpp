// Tables that the page pool writes into the caller's memory, and its C ABI.
#include <cuflash/page_pool.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cuflash {
namespace {

using Numbers = std::vector<int32_t>;
constexpr int32_t kUntouched = 77;

struct Batch {
  PagePool pool{{.pages = 8, .page_size = 4, .max_sequences = 4}};
  std::vector<CachedSequence> sequences;

  Batch() {
    for (const int64_t tokens : {6, 0, 9}) {
      sequences.push_back(pool.start().value());
      EXPECT_TRUE(pool.append(sequences.back(), tokens));
    }
  }
  // "" or the message.
  std::string refusal(const Tensor& table) const {
    try {
      pool.write_block_table(sequences, table);
    } catch (const FlashAttentionError& error) {
      EXPECT_EQ(error.status(), CUFLASH_INVALID_ARGUMENT);
      return error.what();
    }
    return "";
  }
};

TEST(PagePoolTables, RowsFollowTheList) {
  Batch batch;
  Numbers table(9, kUntouched), lengths(3, kUntouched);
  batch.pool.write_block_table(batch.sequences, contiguous(table.data(), 3, 3));
  EXPECT_EQ(table, (Numbers{0, 1, -1, -1, -1, -1, 2, 3, 4}));
  batch.pool.write_lengths(batch.sequences, contiguous(lengths.data(), 3));
  EXPECT_EQ(lengths, (Numbers{6, 0, 9}));

  const std::vector<CachedSequence> twice{batch.sequences[2], batch.sequences[2]};
  batch.pool.write_block_table(twice, contiguous(table.data(), 2, 4), 0);
  EXPECT_EQ(table, (Numbers{2, 3, 4, 0, 2, 3, 4, 0, 4}));
}

TEST(PagePoolTables, RowsMayStandApart) {
  Batch batch;
  Numbers table(3 * 5, kUntouched);
  Tensor view = contiguous(table.data(), 3, 3);
  view.stride[0] = 5;
  batch.pool.write_block_table(batch.sequences, view);
  EXPECT_EQ(table, (Numbers{0, 1, -1, 77, 77, -1, -1, -1, 77, 77, 2, 3, 4, 77, 77}));
}

TEST(PagePoolTables, AnEmptyListIsFine) {
  Batch batch;
  batch.pool.write_block_table({}, contiguous(static_cast<int32_t*>(nullptr), 0, 3));
  batch.pool.write_lengths({}, contiguous(static_cast<int32_t*>(nullptr), 0));
}

TEST(PagePoolTables, WhatDoesNotFitIsRefusedUntouched) {
  Batch batch;
  Numbers table(12, kUntouched);
  const auto expect = [&](const Tensor& view, const std::string& text) {
    const std::string message = batch.refusal(view);
    EXPECT_EQ(message.rfind("block_table: ", 0), 0u) << message;
    EXPECT_NE(message.find(text), message.npos) << message;
    EXPECT_EQ(table, Numbers(12, kUntouched)) << message;
  };
  expect(contiguous(table.data(), 3, 2), "sequences[2] has 3 pages");
  expect(contiguous(table.data(), 2, 3), "must be 3");
  expect(contiguous(table.data(), 4, 3), "must be 3");
  expect(contiguous(table.data(), 9), "rank");
  expect(contiguous(table.data(), DType::f32, 3, 3), "f32");
  expect(contiguous(static_cast<int32_t*>(nullptr), 3, 3), "NULL");
  expect({}, "missing");
  Tensor overlapping = contiguous(table.data(), 3, 3);
  overlapping.stride[0] = 2;
  expect(overlapping, "share memory");
  batch.pool.release(batch.sequences[1]);
  const std::string message = batch.refusal(contiguous(table.data(), 3, 3));
  EXPECT_EQ(message.rfind("sequences[1]: ", 0), 0u) << message;
  EXPECT_EQ(table, Numbers(12, kUntouched));
}

TEST(PagePoolCApi, ASequenceFromStartToRelease) {
  cuflash_page_pool_config config;
  cuflash_page_pool_config_init(&config);
  config.pages = 4, config.page_size = 2, config.max_sequences = 1;
  cuflash_page_pool* pool = nullptr;
  ASSERT_EQ(cuflash_page_pool_create(&config, &pool), CUFLASH_OK) << cuflash_last_error();
  cuflash_sequence sequence{}, second{};
  ASSERT_EQ(cuflash_page_pool_start(pool, &sequence), CUFLASH_OK);
  EXPECT_EQ(cuflash_page_pool_start(pool, &second), CUFLASH_OK);
  EXPECT_EQ(second.serial, 0u) << "full is an answer";
  cuflash_append_result result{};
  EXPECT_EQ(cuflash_page_pool_append(pool, sequence, 3, &result), CUFLASH_OK);
  EXPECT_EQ(result.fit, CUFLASH_FITS);
  EXPECT_EQ(cuflash_page_pool_release(pool, sequence), CUFLASH_OK);
  EXPECT_EQ(cuflash_page_pool_release(pool, sequence), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(cuflash_last_error()).rfind("sequence: ", 0), 0u) << cuflash_last_error();
  EXPECT_EQ(cuflash_page_pool_check(pool), CUFLASH_OK);
  cuflash_page_pool_destroy(pool);
  cuflash_page_pool_destroy(nullptr);
}

TEST(PagePoolCApi, NullIsRefusedBeforeAnythingChanges) {
  cuflash_page_pool_config config;
  cuflash_page_pool_config_init(&config);
  config.pages = 4, config.page_size = 2, config.max_sequences = 2;
  EXPECT_EQ(cuflash_page_pool_create(&config, nullptr), CUFLASH_INVALID_ARGUMENT);
  cuflash_page_pool* pool = nullptr;
  EXPECT_EQ(cuflash_page_pool_create(nullptr, &pool), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(pool, nullptr);
  ASSERT_EQ(cuflash_page_pool_create(&config, &pool), CUFLASH_OK);
  cuflash_sequence sequence{};
  ASSERT_EQ(cuflash_page_pool_start(pool, &sequence), CUFLASH_OK);
  for (const cuflash_status status :
       {cuflash_page_pool_start(pool, nullptr), cuflash_page_pool_fork(pool, sequence, -1, nullptr),
        cuflash_page_pool_append(pool, sequence, 3, nullptr), cuflash_page_pool_trim(pool, sequence, 0, 0, nullptr),
        cuflash_page_pool_state(pool, sequence, nullptr), cuflash_page_pool_statistics(pool, nullptr),
        cuflash_page_pool_write_block_table(pool, &sequence, 1, nullptr, -1),
        cuflash_page_pool_write_block_table(pool, nullptr, 1, nullptr, -1),
        cuflash_page_pool_write_lengths(pool, &sequence, -1, nullptr), cuflash_page_pool_start(nullptr, &sequence),
        cuflash_page_pool_truncate(nullptr, sequence, 0), cuflash_page_pool_release(nullptr, sequence),
        cuflash_page_pool_check(nullptr)})
    EXPECT_EQ(status, CUFLASH_INVALID_ARGUMENT);
  cuflash_page_pool_stats stats{};
  EXPECT_EQ(cuflash_page_pool_statistics(pool, &stats), CUFLASH_OK);
  EXPECT_EQ(stats.sequences, 1);
  EXPECT_EQ(stats.used_pages, 0);
  cuflash_page_pool_destroy(pool);
}

}  // namespace
}  // namespace cuflash
