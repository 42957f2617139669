// cuflash: which page of a KV cache holds which token. The C++ API.
//
//   PagePool pool({.pages = 4096, .page_size = 16, .max_sequences = 256});
//   const CachedSequence prompt = pool.start().value();
//   const Append room = pool.append(prompt, 100);  // false: it does not fit, and nothing has changed
//
// Header-only over the C ABI. cuflash_pages.h documents every function, field and guarantee; docs/cache.md is a guide.
#pragma once

#include <cuflash/cuflash_pages.h>
#include <cuflash/flash_attention.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace cuflash {

using CachedSequence = cuflash_sequence;
using CachedSequenceState = cuflash_sequence_state;
using PageCopy = cuflash_page_copy;
using Trim = cuflash_trim_result;
using PagePoolStats = cuflash_page_pool_stats;

enum class Fit : int32_t {
  fits = CUFLASH_FITS,
  pool_full = CUFLASH_POOL_FULL,
  sequence_full = CUFLASH_SEQUENCE_FULL,
};

struct Append {
  Fit fit = Fit::fits;
  int32_t pages = 0;
  int64_t missing_pages = 0;       // pool_full: pages to free; sequence_full: pages beyond max_pages_per_sequence
  std::optional<PageCopy> copy{};  // make this copy before writing the new tokens

  explicit operator bool() const { return fit == Fit::fits; }
};

struct PagePoolConfig {
  int64_t pages;
  int64_t page_size;
  int64_t max_sequences;
  int64_t max_pages_per_sequence = 0;  // 0: as many as the pool has
};

class PagePool {
 public:
  explicit PagePool(const PagePoolConfig& config) {
    cuflash_page_pool_config c;
    cuflash_page_pool_config_init(&c);
    c.pages = config.pages, c.page_size = config.page_size;
    c.max_sequences = config.max_sequences, c.max_pages_per_sequence = config.max_pages_per_sequence;
    cuflash_page_pool* pool = nullptr;
    detail::check(cuflash_page_pool_create(&c, &pool));
    pool_.reset(pool);
  }

  // std::nullopt if max_sequences are alive.
  std::optional<CachedSequence> start() {
    return some(ask<CachedSequence>([&](auto* s) { return cuflash_page_pool_start(c(), s); }));
  }
  // Shares the first `tokens` cached tokens of parent; -1: all.
  std::optional<CachedSequence> fork(CachedSequence parent, int64_t tokens = -1) {
    return some(ask<CachedSequence>([&](auto* s) { return cuflash_page_pool_fork(c(), parent, tokens, s); }));
  }
  Append append(CachedSequence sequence, int64_t tokens) {
    const auto r =
        ask<cuflash_append_result>([&](auto* to) { return cuflash_page_pool_append(c(), sequence, tokens, to); });
    return {static_cast<Fit>(r.fit), r.pages, r.missing_pages,
            r.copy.tokens > 0 ? std::optional(r.copy) : std::nullopt};
  }
  void truncate(CachedSequence sequence, int64_t tokens) {
    detail::check(cuflash_page_pool_truncate(c(), sequence, tokens));
  }
  Trim trim(CachedSequence sequence, int64_t sinks, int64_t window) {
    return ask<Trim>([&](auto* t) { return cuflash_page_pool_trim(c(), sequence, sinks, window, t); });
  }
  void release(CachedSequence sequence) { detail::check(cuflash_page_pool_release(c(), sequence)); }

  CachedSequenceState state(CachedSequence sequence) const {
    return ask<CachedSequenceState>([&](auto* s) { return cuflash_page_pool_state(c(), sequence, s); });
  }
  std::vector<int32_t> pages(CachedSequence sequence) const {
    std::vector<int32_t> pages(static_cast<size_t>(state(sequence).pages));
    write_block_table({&sequence, 1}, contiguous(pages.data(), 1, pages.size()));
    return pages;
  }
  PagePoolStats statistics() const {
    return ask<PagePoolStats>([&](auto* s) { return cuflash_page_pool_statistics(c(), s); });
  }

  // i32 [sequences, columns] in host memory; columns after a sequence's pages are set to `unused`.
  void write_block_table(std::span<const CachedSequence> sequences, const Tensor& block_table,
                         int32_t unused = -1) const {
    const cuflash_mutable_tensor to = detail::to_c(block_table);
    detail::check(cuflash_page_pool_write_block_table(c(), sequences.data(), count(sequences), &to, unused));
  }
  // i32 [sequences] in host memory.
  void write_lengths(std::span<const CachedSequence> sequences, const Tensor& cache_seqlens) const {
    const cuflash_mutable_tensor to = detail::to_c(cache_seqlens);
    detail::check(cuflash_page_pool_write_lengths(c(), sequences.data(), count(sequences), &to));
  }

  // Throws if the pool is inconsistent, which would be a bug in cuflash.
  void check() const { detail::check(cuflash_page_pool_check(c())); }

 private:
  struct Destroy {
    void operator()(cuflash_page_pool* pool) const { cuflash_page_pool_destroy(pool); }
  };

  cuflash_page_pool* c() const { return pool_.get(); }
  static int64_t count(std::span<const CachedSequence> sequences) { return static_cast<int64_t>(sequences.size()); }
  static std::optional<CachedSequence> some(CachedSequence s) {
    return s.serial != 0 ? std::optional(s) : std::nullopt;
  }

  template <class Answer, class Question>
  static Answer ask(Question question) {
    Answer answer{};
    detail::check(question(&answer));
    return answer;
  }

  std::unique_ptr<cuflash_page_pool, Destroy> pool_;
};

}  // namespace cuflash
