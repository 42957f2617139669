// A question about attention over a KV cache; question.h is for other calls.
#pragma once

#include <cuflash/cached_attention.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/sketch.h"
#include "cli/support/question.h"

namespace cuflash::cli {

struct CacheSketch;

// Two sequences of one query each. The cache has an entry for each of them, or pages.
struct CacheQuestion {
  DType dtype = DType::bf16;
  int64_t dim = 128;
  std::optional<int64_t> dim_v{};  // default: dim
  int64_t heads = 32, heads_k = 8;
  int64_t room = kSupportLength;               // tokens per entry
  int64_t page_size = 0;                       // not 0: the cache is paged, with a block table
  std::function<void(CacheSketch&)> change{};  // makes further changes
};

// The problem without memory for keys and values. Lengths and block tables exist, because the CPU backend reads them.
struct CacheSketch {
  explicit CacheSketch(const CacheQuestion& question);

  Tensor rows(int64_t entries, int64_t heads, int64_t length, int64_t dim);
  Tensor contiguous_of(DType type, int64_t rows, int64_t columns);

  const CacheQuestion& question;
  Placeholders memory;
  Attention attention{};
  CacheTensors cache{};
  std::vector<int32_t> table{};
};

// A change: values are the first columns of the keys, in the same memory.
void take_values_from_keys(CacheSketch& sketch);

Answer ask(const CacheQuestion& question, const std::string& place);
// The tiles of the TMA kernel on Hopper, or why another kernel is used.
std::string ask_tma(const CacheQuestion& question);

}  // namespace cuflash::cli
