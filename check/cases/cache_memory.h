// The tensors of a call over a cache: filled where the call may read, NaN everywhere else, every tensor guarded.
#pragma once

#include <string>
#include <vector>

#include "check/cases/cache_case.h"
#include "check/cases/random.h"
#include "check/memory/guarded.h"

namespace cuflash::check {

class CacheMemory {
 public:
  explicit CacheMemory(const CacheCase& c);

  Attention attention() const;
  CacheTensors tensors(bool with_lse) const;

  void start();  // restores the cache; poisons o and lse

  // What a call wrote by mistake, or "". The cache must hold the new rows and be unchanged otherwise.
  std::string damage();
  // The bits of o and of the cache.
  std::vector<std::vector<std::byte>> results() const { return {o.bytes(), k.bytes(), v.bytes()}; }

  // The row in q and o where sequence b starts.
  int64_t first_q(int64_t b) const { return cu_q_.empty() ? 0 : cu_q_[static_cast<size_t>(b)]; }
  int64_t first_new(int64_t b) const { return cu_new_.empty() ? 0 : cu_new_[static_cast<size_t>(b)]; }

  GuardedTensor q, k, v, k_new, v_new, o, lse;

 private:
  void build_tensors();
  void build_table(Random& random);
  void build_entries(Random& random);
  void build_rotary();
  void fill(Random& random);
  void fill_cache(const GuardedTensor& from, GuardedTensor& to) const;
  void fill_new_rows(const GuardedTensor& from, GuardedTensor& to, Random& random) const;

  int64_t entries() const;
  int64_t pages(int64_t b) const { return (case_.after(b) + case_.page_size - 1) / case_.page_size; }
  int64_t cache_offset(const GuardedTensor& t, int64_t b, int64_t h, int64_t r) const;
  std::vector<GuardedTensor*> inputs();

  CacheCase case_;
  std::vector<int32_t> cu_q_, cu_k_, cu_new_;
  std::vector<std::vector<int32_t>> pages_;  // by sequence, including pages that the call may not read
  std::vector<int32_t> entries_;             // contiguous cache: the entry of each sequence
  GuardedTensor sink_, slopes_, cu_seqlens_q_, seqlens_q_;
  GuardedTensor seqlens_, table_, batch_idx_, leftpad_, cu_seqlens_new_, seqlens_new_, cos_, sin_;
  std::vector<std::byte> k_before_, v_before_;
};

}  // namespace cuflash::check
