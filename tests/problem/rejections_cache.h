// A valid call over a KV cache with every option on and every optional tensor given, and the check that such a call
// with one defect is refused as the contract says.
#pragma once

#include <cuflash/cuflash_cache.h>
#include <limits>

#include <functional>
#include <limits>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "tests/problem/rejections.h"

namespace cuflash::rejections {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();

enum class NewRows { none, dense, padded, packed };

// Two sequences of 5 and 4 rows, of which the first is left padding, get 2 new rows each (padded and packed: 2 and 1).
struct CacheKind {
  DType dtype = DType::f32;
  Mode queries = Mode::dense;
  NewRows new_rows = NewRows::dense;
  bool paged = false;

  static constexpr int64_t kBatch = 2, kHeadsK = 2, kHeadsQ = 4, kQueries = 3, kDim = 6, kDimV = 5, kNew = 2;
  static constexpr int64_t kRoom = 9, kEntries = 4;                  // contiguous
  static constexpr int64_t kPageSize = 4, kPages = 8, kColumns = 3;  // paged
  static constexpr int64_t kPositions = 12, kRotaryDim = 4;          // rotary
  int64_t room() const { return paged ? kPageSize * kColumns : kRoom; }
};
std::string describe(const CacheKind& kind);

class CacheCall {
 public:
  explicit CacheCall(const CacheKind& kind);
  CacheCall(const CacheCall&) = delete;
  CacheCall& operator=(const CacheCall&) = delete;

  cuflash_status run() const { return cuflash_attend_cache(attention_argument, cache_argument, &execution); }
  cuflash_status workspace_size(size_t* bytes) const {
    return cuflash_attend_cache_workspace_size(attention_argument, cache_argument, &execution, bytes);
  }
  cuflash_status explain() const {
    return cuflash_explain_attend_cache(attention_argument, cache_argument, &execution, nullptr, 0, nullptr);
  }
  bool outputs_untouched() const;  // the cache is one
  bool appends() const { return kind.new_rows != NewRows::none; }

  std::vector<Slot> slots();  // those this call has
  std::optional<Slot> slot(const std::string& name);
  int32_t* integers(const std::string& name) { return static_cast<int32_t*>(const_cast<void*>(slot(name)->data)); }
  std::byte* scratch(size_t bytes);  // 64-byte aligned and zero; lives as long as the call

  const CacheKind kind;
  cuflash_attention attention;
  cuflash_cache_tensors cache;
  cuflash_execution execution;
  // The pointers that are passed; a rule may redirect them.
  const cuflash_attention* attention_argument = &attention;
  const cuflash_cache_tensors* cache_argument = &cache;

 private:
  using Shape = std::vector<int64_t>;
  using Memory = std::list<std::vector<unsigned char>>;

  template <class TensorStruct>
  void bind(TensorStruct& t, DType dtype, const Shape& shape);
  void bind_integers(cuflash_tensor& t, const Shape& shape, const std::vector<int32_t>& values);
  void fill_queries();
  void fill_cache();
  void fill_new_rows();

  Memory inputs_memory_, outputs_memory_, scratch_;
};

// Breaks one thing of a valid call; returns nothing if the call has no such thing.
struct CacheRule {
  std::string name;
  std::function<std::optional<Refusal>(CacheCall& call)> apply;
};

// Each rule on every kind of call: every rule must have applied to some.
void expect_all_refused(const std::vector<CacheRule>& rules);
void for_each_kind(const std::function<void(const CacheKind&)>& visit);

}  // namespace cuflash::rejections
