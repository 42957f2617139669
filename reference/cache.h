// A call over a KV cache as plain attention: the rows it appends, and the equivalent problem over gathered keys, whose
// oracle, naive evaluation and noise apply to the call.
#pragma once

#include <cuflash/cached_attention.h>

#include <cstddef>
#include <vector>

#include "oracle.h"

namespace cuflash::reference {

// A row that the call writes. A rotated element must be between the roundings of what f32 (f64 for f64) may compute; any
// other element is a copy, for which least and most are equal.
struct AppendedRow {
  int64_t offset;  // position of its first element in the cache
  std::vector<double> least, most;
};
std::vector<AppendedRow> appended_k(const Attention& attention, const CacheTensors& cache);
std::vector<AppendedRow> appended_v(const Attention& attention, const CacheTensors& cache);  // empty without v_new

// Rotates queries, gathers keys and values. The cache must already hold the appended rows: a rotated key has more than one
// legal rounding, so the keys are taken as written, and checked separately.
class PlainProblem {
 public:
  PlainProblem(const Attention& attention, const CacheTensors& cache);
  PlainProblem(const PlainProblem&) = delete;
  PlainProblem& operator=(const PlainProblem&) = delete;

  // Packed if the queries of the call are; otherwise dense, with seqlens_k.
  const Attention& attention() const { return attention_; }

  // The change of each element of a result that another legal rounding of rotated queries may cause, in addition to
  // forward_noise.
  Forward rotary_noise() const;

 private:
  void gather_queries(const Attention& attention, const CacheTensors& cache);
  void gather_keys(const Attention& attention, const CacheTensors& cache);

  std::vector<std::byte> q_, k_, v_;
  std::vector<double> q_spread_;  // parallel to q_: most - least of every element; empty without rotary embedding
  std::vector<int32_t> lengths_k_, cu_k_;
  Attention attention_;
};

}  // namespace cuflash::reference
