// Sequences in a KV cache, for tests: the cache, with NaN in every row and garbage in every table entry that no call may
// read, the appended rows, and the same problem without a cache, for the oracle.
#pragma once

#include <cuflash/cached_attention.h>

#include <string>
#include <vector>

#include "tests/shared/support.h"

namespace cuflash::test {

enum class Order { bhsd, bshd };
enum class Batching { dense, padded, packed };  // how sequences of different lengths share a tensor

struct CacheSpec {
  DType dtype = DType::f32;
  int64_t heads_q = 2, heads_k = 1, dim = 8, dim_v = 8;
  std::vector<int32_t> rows;     // before the append, including left padding
  std::vector<int32_t> leftpad;  // empty: not given
  std::vector<int32_t> queries;  // by sequence; dense: all equal
  std::vector<int32_t> fresh;    // appended rows; empty: none

  Order order = Order::bshd;
  int64_t page_size = 0;  // 0: contiguous
  bool batch_idx = false;
  bool pages_in_order = false;  // the pages of a sequence are consecutive
  bool v_in_k = false;
  Batching queries_as = Batching::padded, fresh_as = Batching::padded;

  int64_t rotary = 0;  // rotated elements of a row
  bool interleaved = false, one_position = false;
  DType rotary_type = DType::f32;

  bool causal = true;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0;
  bool alibi = false, sink = false;
  int32_t num_splits = 0;

  int64_t batch() const { return static_cast<int64_t>(rows.size()); }
};

struct CacheResult {
  std::vector<double> o, lse;
};
inline bool same_bits(const CacheResult& a, const CacheResult& b) {
  return same_bits(a.o, b.o) && same_bits(a.lse, b.lse);
}

class CachedSequences {
 public:
  explicit CachedSequences(const CacheSpec& spec);

  // Runs the call on a fresh cache. Fails the test if a byte outside of outputs and appended rows changed, or if those
  // are wrong.
  CacheResult run(const Execution& execution = {});
  // Compares a result with the oracle.
  void expect_matches_oracle(const CacheResult& result);
  CacheResult check(const Execution& execution = {}) {
    CacheResult result = run(execution);
    expect_matches_oracle(result);
    return result;
  }

  // One sequence of the batch in its own call; must equal part_of the whole.
  CacheResult run_alone(int64_t b);
  CacheResult part_of(const CacheResult& all, int64_t b) const;

  const Attention& attention() const { return attention_; }
  CacheTensors tensors(const Buffer& o, const Buffer& lse) const;
  Tensor o_layout() const;
  Tensor lse_layout() const;

 private:
  using Values = std::vector<double>;  // [token][head][dim], rounded to the type

  Tensor cache_layout(int64_t dim) const;
  Tensor rows_layout(Batching as, const std::vector<int32_t>& lengths, int64_t heads, int64_t dim) const;
  int64_t pages_of(int64_t b) const;
  int64_t keys(int64_t b) const;      // after the append
  int64_t old_keys(int64_t b) const;  // before it
  int64_t fresh(int64_t b) const;
  int64_t pad(int64_t b) const;
  bool seen(int64_t b, int64_t key) const;

  void draw_tokens();
  void place_pages();
  void place_queries_and_fresh();
  void make_plain();
  void rotate(Values& rows, int64_t heads, int64_t row, int64_t position) const;
  void write_tokens(Buffer& k, Buffer& v, bool after) const;
  int64_t offset(const Tensor& cache, int64_t b, int64_t h, int64_t key) const;
  void expect_appended(const Buffer& k, const Buffer& v) const;

  CacheSpec s_;
  int64_t room_ = 0, entries_ = 0;
  std::vector<int32_t> entry_, table_, cu_q_, cu_new_, used_q_, used_new_;
  int64_t columns_ = 0;
  std::vector<Values> k_, v_, q_;      // by sequence, after rotation
  std::vector<Values> k_raw_, q_raw_;  // as given
  Buffer q_given_, k_new_, v_new_, cos_, sin_;
  Buffer k_cache_, v_cache_;  // the caches of the last run
  std::vector<float> slopes_, sink_;
  Attention attention_;

  // The tensors of the same problem without a cache.
  Buffer plain_q_, plain_k_, plain_v_;
  std::vector<int32_t> plain_cu_k_, plain_used_k_;
  Attention plain_;
};

}  // namespace cuflash::test
