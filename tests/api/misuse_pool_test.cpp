// Wrong calls of the C functions of page pools: each must return a status and a sentence that begins with the argument, and
// leave the pool unchanged.
#include <cuflash/cuflash_pages.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/api/misuse.h"

namespace cuflash::rejections {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

class PoolMisuse : public MisuseTest {
 protected:
  void SetUp() override {
    pool_ = make(8);
    other_ = make(8);
    cuflash_sequence released{};
    cuflash_append_result ignored{};
    ASSERT_EQ(cuflash_page_pool_start(pool_, &released), CUFLASH_OK);
    ASSERT_EQ(cuflash_page_pool_start(pool_, &sequence_), CUFLASH_OK);
    ASSERT_EQ(cuflash_page_pool_append(pool_, sequence_, 6, &ignored), CUFLASH_OK);
    ASSERT_EQ(cuflash_page_pool_release(pool_, released), CUFLASH_OK);
    cuflash_sequence foreign{};
    ASSERT_EQ(cuflash_page_pool_start(other_, &foreign), CUFLASH_OK);
    const auto at = [&](int64_t slot) { return cuflash_sequence{sequence_.serial, slot}; };
    bad_ = {{"released", released},
            {"foreign", foreign},
            {"zero", {}},
            {"slot -1", at(-1)},
            {"slot 2", at(2)},
            {"slot -2^63", at(kLowest)},
            {"slot 2^63 - 1", at(kHighest)},
            {"serial of none", {~uint64_t{0}, 0}}};
  }
  void TearDown() override {
    EXPECT_EQ(cuflash_page_pool_check(pool_), CUFLASH_OK) << cuflash_last_error();
    cuflash_page_pool_stats stats{};
    EXPECT_EQ(cuflash_page_pool_statistics(pool_, &stats), CUFLASH_OK);
    EXPECT_EQ(stats.tokens, 6) << "a refused call has changed the pool";
    EXPECT_EQ(stats.sequences, 1);
    cuflash_page_pool_destroy(pool_), cuflash_page_pool_destroy(other_), cuflash_page_pool_destroy(nullptr);
    MisuseTest::TearDown();
  }
  static cuflash_page_pool* make(int64_t pages) {
    cuflash_page_pool_config config;
    cuflash_page_pool_config_init(&config);
    config.pages = pages, config.page_size = 4, config.max_sequences = 2;
    cuflash_page_pool* pool = nullptr;
    EXPECT_EQ(cuflash_page_pool_create(&config, &pool), CUFLASH_OK) << cuflash_last_error();
    return pool;
  }
  void refuse(const std::string& name, const std::string& argument, cuflash_status status) {
    misuse.check(name, why_not_refused(true, {argument}, "it", status));
  }

  cuflash_page_pool *pool_ = nullptr, *other_ = nullptr;
  cuflash_sequence sequence_{};
  std::vector<std::pair<std::string, cuflash_sequence>> bad_;
};

TEST_F(PoolMisuse, Handles) {
  cuflash_sequence child{};
  cuflash_append_result append{};
  cuflash_trim_result trim{};
  cuflash_sequence_state state{};
  for (const auto& [what, s] : bad_) {
    refuse("fork of " + what, "parent", cuflash_page_pool_fork(pool_, s, -1, &child));
    refuse("append to " + what, "sequence", cuflash_page_pool_append(pool_, s, 1, &append));
    refuse("truncate " + what, "sequence", cuflash_page_pool_truncate(pool_, s, 0));
    refuse("trim " + what, "sequence", cuflash_page_pool_trim(pool_, s, 0, 1, &trim));
    refuse("release " + what, "sequence", cuflash_page_pool_release(pool_, s));
    refuse("state of " + what, "sequence", cuflash_page_pool_state(pool_, s, &state));
    int32_t room[4] = {7, 7, 7, 7};
    const cuflash_sequence list[] = {sequence_, s};
    const cuflash_mutable_tensor table{room, CUFLASH_I32, 2, {2, 2}, {2, 1}}, lengths{room, CUFLASH_I32, 1, {2}, {1}};
    refuse("table of " + what, "sequences[1]", cuflash_page_pool_write_block_table(pool_, list, 2, &table, -1));
    refuse("lengths of " + what, "sequences[1]", cuflash_page_pool_write_lengths(pool_, list, 2, &lengths));
    for (const int32_t value : room) EXPECT_EQ(value, 7) << what;
  }
}

TEST_F(PoolMisuse, Pointers) {
  cuflash_sequence child{};
  cuflash_append_result append{};
  cuflash_trim_result trim{};
  cuflash_sequence_state state{};
  cuflash_page_pool_stats stats{};
  int32_t room[2] = {};
  const cuflash_mutable_tensor table{room, CUFLASH_I32, 2, {1, 2}, {2, 1}}, lengths{room, CUFLASH_I32, 1, {1}, {1}};
  refuse("start, no pool", "pool", cuflash_page_pool_start(nullptr, &child));
  refuse("fork, no pool", "pool", cuflash_page_pool_fork(nullptr, sequence_, -1, &child));
  refuse("append, no pool", "pool", cuflash_page_pool_append(nullptr, sequence_, 1, &append));
  refuse("truncate, no pool", "pool", cuflash_page_pool_truncate(nullptr, sequence_, 1));
  refuse("trim, no pool", "pool", cuflash_page_pool_trim(nullptr, sequence_, 0, 1, &trim));
  refuse("release, no pool", "pool", cuflash_page_pool_release(nullptr, sequence_));
  refuse("state, no pool", "pool", cuflash_page_pool_state(nullptr, sequence_, &state));
  refuse("statistics, no pool", "pool", cuflash_page_pool_statistics(nullptr, &stats));
  refuse("table, no pool", "pool", cuflash_page_pool_write_block_table(nullptr, &sequence_, 1, &table, -1));
  refuse("lengths, no pool", "pool", cuflash_page_pool_write_lengths(nullptr, &sequence_, 1, &lengths));
  refuse("check, no pool", "pool", cuflash_page_pool_check(nullptr));
  refuse("start, no answer", "sequence", cuflash_page_pool_start(pool_, nullptr));
  refuse("fork, no answer", "child", cuflash_page_pool_fork(pool_, sequence_, -1, nullptr));
  refuse("append, no answer", "result", cuflash_page_pool_append(pool_, sequence_, 1, nullptr));
  refuse("trim, no answer", "result", cuflash_page_pool_trim(pool_, sequence_, 0, 1, nullptr));
  refuse("state, no answer", "state", cuflash_page_pool_state(pool_, sequence_, nullptr));
  refuse("statistics, no answer", "stats", cuflash_page_pool_statistics(pool_, nullptr));
  refuse("table, no list", "sequences", cuflash_page_pool_write_block_table(pool_, nullptr, 1, &table, -1));
  refuse("lengths, no list", "sequences", cuflash_page_pool_write_lengths(pool_, nullptr, 1, &lengths));
  refuse("table, no tensor", "block_table", cuflash_page_pool_write_block_table(pool_, &sequence_, 1, nullptr, -1));
  refuse("lengths, no tensor", "cache_seqlens", cuflash_page_pool_write_lengths(pool_, &sequence_, 1, nullptr));
  for (const int64_t count : {int64_t{-1}, kLowest}) {
    refuse("table, count " + text(count), "count",
           cuflash_page_pool_write_block_table(pool_, &sequence_, count, &table, -1));
    refuse("lengths, count " + text(count), "count",
           cuflash_page_pool_write_lengths(pool_, &sequence_, count, &lengths));
  }
  for (const int64_t count : {int64_t{2}, int64_t{1} << 40, kHighest}) {  // more than the tensor has rows
    refuse("table, count " + text(count), "block_table",
           cuflash_page_pool_write_block_table(pool_, &sequence_, count, &table, -1));
    refuse("lengths, count " + text(count), "cache_seqlens",
           cuflash_page_pool_write_lengths(pool_, &sequence_, count, &lengths));
  }
}

TEST_F(PoolMisuse, Numbers) {
  cuflash_sequence child{};
  cuflash_append_result append{};
  cuflash_trim_result trim{};
  for (const int64_t tokens : {int64_t{-2}, int64_t{7}, kLowest, kHighest})
    refuse("fork of " + text(tokens), "tokens", cuflash_page_pool_fork(pool_, sequence_, tokens, &child));
  for (const int64_t tokens : {int64_t{-1}, kLowest})
    refuse("append " + text(tokens), "tokens", cuflash_page_pool_append(pool_, sequence_, tokens, &append));
  for (const int64_t tokens : {int64_t{-1}, int64_t{7}, kLowest, kHighest})
    refuse("truncate to " + text(tokens), "tokens", cuflash_page_pool_truncate(pool_, sequence_, tokens));
  for (const int64_t number : {int64_t{-1}, kLowest}) {
    refuse("sinks " + text(number), "sinks", cuflash_page_pool_trim(pool_, sequence_, number, 1, &trim));
    refuse("window " + text(number), "window", cuflash_page_pool_trim(pool_, sequence_, 0, number, &trim));
  }
  // Too many tokens are an answer, not an error, even if their sum would overflow.
  EXPECT_EQ(cuflash_page_pool_append(pool_, sequence_, kHighest, &append), CUFLASH_OK) << cuflash_last_error();
  EXPECT_NE(append.fit, CUFLASH_FITS);
}

TEST_F(PoolMisuse, Configurations) {
  cuflash_page_pool* made = nullptr;
  const auto create = [&](const std::string& argument, int64_t cuflash_page_pool_config::*field, int64_t value) {
    cuflash_page_pool_config config;
    cuflash_page_pool_config_init(&config);
    config.pages = config.page_size = config.max_sequences = 1;
    config.*field = value;
    refuse(argument + " " + text(value), argument, cuflash_page_pool_create(&config, &made));
  };
  for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, kLowest, kHighest}) {
    create("pages", &cuflash_page_pool_config::pages, value);
    create("page_size", &cuflash_page_pool_config::page_size, value);
    create("max_sequences", &cuflash_page_pool_config::max_sequences, value);
    if (value != 0) create("max_pages_per_sequence", &cuflash_page_pool_config::max_pages_per_sequence, value);
  }
  cuflash_page_pool_config config;
  cuflash_page_pool_config_init(&config);
  config.pages = config.page_size = config.max_sequences = 1;
  refuse("no config", "page_pool_config", cuflash_page_pool_create(nullptr, &made));
  refuse("no place for the pool", "pool", cuflash_page_pool_create(&config, nullptr));
  for (const size_t size : {size_t{0}, sizeof config - 1, ~size_t{0}}) {
    config.struct_size = size;
    refuse("config of size " + text(size), "page_pool_config", cuflash_page_pool_create(&config, &made));
  }
  EXPECT_EQ(made, nullptr);
}

TEST_F(PoolMisuse, TensorsToWriteInto) {
  for (const Defect& defect : tensor_defects()) {
    int32_t room[8] = {};
    const cuflash_sequence list[] = {sequence_, sequence_};
    for (const int rank : {1, 2}) {
      cuflash_mutable_tensor t{room, CUFLASH_I32, rank, {2, 2}, {rank == 1 ? 1 : 2, 1}};
      std::vector<Slot> slots;
      add_slot(slots, rank == 1 ? "cache_seqlens" : "block_table", t);
      const Defect::Values values = defect.apply(slots[0]);
      if (!values) continue;
      const cuflash_status status = rank == 1 ? cuflash_page_pool_write_lengths(pool_, list, 2, &t)
                                              : cuflash_page_pool_write_block_table(pool_, list, 2, &t, 7);
      misuse.check(slots[0].name + " " + defect.what,
                   why_not_refused(room[0] == 0 && room[2] == 0, {slots[0].name, *values}, "it", status));
    }
  }
  // A list that would be overwritten while being read.
  std::vector<cuflash_sequence> list(2, sequence_);
  const cuflash_mutable_tensor table{list.data(), CUFLASH_I32, 2, {2, 2}, {2, 1}};
  const cuflash_mutable_tensor lengths{list.data() + 1, CUFLASH_I32, 1, {2}, {1}};
  refuse("block_table is the list", "block_table",
         cuflash_page_pool_write_block_table(pool_, list.data(), 2, &table, 0));
  refuse("cache_seqlens are in the list", "cache_seqlens",
         cuflash_page_pool_write_lengths(pool_, list.data(), 2, &lengths));
  EXPECT_EQ(list[1].serial, sequence_.serial);
}

}  // namespace
}  // namespace cuflash::rejections
