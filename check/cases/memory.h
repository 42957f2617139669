// The tensors of a case: inputs filled, garbage where no call may read, every tensor guarded.
#pragma once

#include "check/cases/case.h"
#include "check/cases/random.h"
#include "check/memory/guarded.h"

namespace cuflash::check {

class CaseMemory {
 public:
  explicit CaseMemory(const Case& c);

  Device device() const { return case_.device; }
  Attention attention() const;        // with the mask tensor
  Attention given_attention() const;  // what the call gets: a summary of the mask may take its place
  ForwardOutputs forward_outputs(bool with_lse) const;
  BackwardTensors backward_tensors() const;

  void start_forward();   // poisons o and lse
  void start_backward();  // o and lse become inputs, the gradients are poisoned

  // Changes everything that no query may see; no bit of the results may change.
  void change_hidden(uint64_t seed);
  // Bits of every output and gradient.
  std::vector<std::vector<std::byte>> results() const;

  std::string damage() const;               // "", or the first tensor with an illegal write
  std::string unwritten_gradients() const;  // "", or the first unwritten element of a gradient

  // Whether the mask tensor shows a pair.
  bool shows(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // Step 6 of the contract, with the mask tensor.
  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // The row in q or k where sequence b starts.
  int64_t first_q(int64_t b) const { return cu_q_values_.empty() ? 0 : cu_q_values_[static_cast<size_t>(b)]; }
  int64_t first_k(int64_t b) const { return cu_k_values_.empty() ? 0 : cu_k_values_[static_cast<size_t>(b)]; }
  int64_t lse_offset(const GuardedTensor& t, int64_t b, int64_t h, int64_t i) const;

  GuardedTensor q, k, v, bias, mask, sink;
  GuardedTensor o, lse, dout, dlse;
  GuardedTensor dq, dk, dv, dbias, dsink;

 private:
  using Marks = std::vector<bool>;  // by offset: whether a call may read the element

  void build_inputs();
  void build_outputs();
  void fill_inputs(Random& random);
  void summarize();
  void freeze_inputs();
  void plant_live_nan(Random& random);

  bool key_is_seen(int64_t b, int64_t head_k, int64_t j) const;
  Marks used_query_rows(const GuardedTensor& t, int64_t heads, int64_t dim) const;
  Marks used_lse(const GuardedTensor& t) const;
  Marks seen_keys(const GuardedTensor& t, int64_t dim) const;
  Marks seen_bias() const;

  Case case_;
  std::vector<int32_t> cu_q_values_, cu_k_values_;  // packed
  GuardedTensor slopes_, summary_, cu_q_, cu_k_, used_q_, used_k_;
  SummarizedMask made_;  // in summary_
};

}  // namespace cuflash::check
