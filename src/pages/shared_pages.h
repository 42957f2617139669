// Reference-counted pages: a page without holders is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cuflash::cache {

class SharedPages {
 public:
  explicit SharedPages(int32_t pages) : holders_(static_cast<size_t>(pages)), free_(static_cast<size_t>(pages)) {
    for (size_t n = 0; n < free_.size(); ++n) free_[n] = pages - 1 - static_cast<int32_t>(n);  // page 0 goes first
    free_count_ = pages;
  }

  int64_t count() const { return static_cast<int64_t>(holders_.size()); }
  int64_t free_count() const { return free_count_; }
  int64_t shared_count() const { return shared_count_; }
  int32_t holders(int32_t page) const { return holders_[static_cast<size_t>(page)]; }
  bool is_shared(int32_t page) const { return holders(page) > 1; }
  // The free pages; take() pops the last of them.
  std::span<const int32_t> free() const { return {free_.data(), static_cast<size_t>(free_count_)}; }

  // Requires a free page.
  int32_t take() {
    const int32_t page = free_[static_cast<size_t>(--free_count_)];
    holders_[static_cast<size_t>(page)] = 1;
    return page;
  }
  // Adds a holder to a page that already has one.
  void share(int32_t page) {
    if (++holders_[static_cast<size_t>(page)] == 2) ++shared_count_;
  }
  // Removes a holder. Returns whether the page is now free.
  bool release(int32_t page) {
    const int32_t left = --holders_[static_cast<size_t>(page)];
    if (left == 1) --shared_count_;
    if (left == 0) free_[static_cast<size_t>(free_count_++)] = page;
    return left == 0;
  }

 private:
  std::vector<int32_t> holders_;  // number of holders of each page
  std::vector<int32_t> free_;     // a stack: the first free_count_ entries
  int32_t free_count_ = 0;
  int32_t shared_count_ = 0;
};

}  // namespace cuflash::cache
