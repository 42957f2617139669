// A call over a KV cache as plain attention: what it appends, and the problem over gathered keys that it then is. The
// oracle, the naive evaluation and the noise of that problem are those of the call.
#pragma once

#include <cuflash/cached_attention.h>

#include <cstddef>
#include <vector>

#include "oracle.h"

namespace cuflash::reference {

// A row that the call writes. An element that is turned lies between the roundings of what f32 (f64 for f64) may make
// of it; any other is a copy, where least and most are the same.
struct AppendedRow {
  int64_t offset;  // of its first element in the cache
  std::vector<double> least, most;
};
std::vector<AppendedRow> appended_k(const Attention& attention, const CacheTensors& cache);
std::vector<AppendedRow> appended_v(const Attention& attention, const CacheTensors& cache);  // none without v_new

// Queries turned, keys and values gathered. The cache must hold what the call has appended: since a turned key has more
// than one legal rounding, the keys are those that were written, which are checked by themselves.
class PlainProblem {
 public:
  PlainProblem(const Attention& attention, const CacheTensors& cache);
  PlainProblem(const PlainProblem&) = delete;
  PlainProblem& operator=(const PlainProblem&) = delete;

  // Packed where the queries of the call are; otherwise dense, with seqlens_k.
  const Attention& attention() const { return attention_; }

  // How far another legal rounding of turned queries may move each element of a result: beside forward_noise.
  Forward turning_noise() const;

 private:
  void gather_queries(const Attention& attention, const CacheTensors& cache);
  void gather_keys(const Attention& attention, const CacheTensors& cache);

  std::vector<std::byte> q_, k_, v_;
  std::vector<double> q_spread_;  // beside q_: most - least of every element; empty where nothing is turned
  std::vector<int32_t> lengths_k_, cu_k_;
  Attention attention_;
};

}  // namespace cuflash::reference
