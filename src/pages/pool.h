// Maps the tokens of sequences to pages of a KV cache. cuflash_pages.h documents each function.
//
// Each sequence has one row of a table that is as wide as the longest allowed sequence, so appending never allocates
// and a row can be copied into the block table of an attention call. All pages of a row are full except possibly the
// last, which is therefore the only one ever written or copied.
#pragma once

#include <cuflash/cuflash_pages.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pages/shared_pages.h"

namespace cuflash::cache {

class Pool {
 public:
  explicit Pool(const cuflash_page_pool_config& config);

  cuflash_sequence start();
  cuflash_sequence fork(cuflash_sequence parent, int64_t tokens);
  cuflash_append_result append(cuflash_sequence sequence, int64_t tokens);
  void truncate(cuflash_sequence sequence, int64_t tokens);
  cuflash_trim_result trim(cuflash_sequence sequence, int64_t sinks, int64_t window);
  void release(cuflash_sequence sequence);

  bool has(cuflash_sequence sequence) const;
  // Throws unless has(sequence); `name` is the name of the argument.
  void require(const char* name, cuflash_sequence sequence) const { find(name, sequence); }
  cuflash_sequence_state state(cuflash_sequence sequence) const;
  std::span<const int32_t> pages(cuflash_sequence sequence) const;
  cuflash_page_pool_stats statistics() const;
  void check() const;  // throws if the bookkeeping is inconsistent

 private:
  struct Row {
    uint64_t serial = 0;  // 0: the row is free
    int32_t pages = 0;
    int32_t tokens = 0;
    int32_t sinks = 0;    // tokens before the gap, whole pages
    int64_t dropped = 0;  // tokens in the gap, whole pages
  };

  const Row& find(const char* name, cuflash_sequence sequence) const;
  Row& find(const char* name, cuflash_sequence sequence);
  int64_t slot_of(const Row& row) const { return &row - rows_.data(); }
  cuflash_sequence handle(const Row& row) const { return {row.serial, slot_of(row)}; }
  int32_t* table(const Row& row) const { return table_.get() + slot_of(row) * max_pages_; }
  std::span<const int32_t> pages(const Row& row) const { return {table(row), static_cast<size_t>(row.pages)}; }
  int64_t pages_for(int64_t tokens) const { return tokens / page_size_ + (tokens % page_size_ != 0); }

  Row* take_row();
  int64_t release_pages(const Row& row, int64_t begin, int64_t end);
  void cut(Row& row, int64_t tokens) const;
  cuflash_page_copy own_last_page(const Row& row);

  int64_t count_wasted() const;
  void check_row(const Row& row) const;
  void check_free_rows() const;
  void check_holders() const;
  void check_free_pages() const;

  const int64_t page_size_;
  const int64_t max_pages_;  // pages of one sequence
  SharedPages pages_;
  std::vector<Row> rows_;
  std::vector<int32_t> free_rows_;    // a stack that never grows beyond its first capacity
  std::unique_ptr<int32_t[]> table_;  // [max_sequences, max_pages_]; unused entries are never touched
};

}  // namespace cuflash::cache
