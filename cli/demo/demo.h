// A problem of the demo with its memory.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <vector>

#include "files/tensors/tensor_file.h"

namespace cuflash::cli {

struct DemoShape {
  int64_t batch, heads_q, heads_k, seq, dim;
};

// Causal attention over N(0, 1) inputs, with memory for every result.
class DemoProblem {
 public:
  DemoProblem(const DemoShape& shape, DType type);

  const Attention& attention() const { return attention_; }
  ForwardOutputs outputs() const { return {o_.view, lse_.view}; }
  BackwardTensors gradients() const;

  std::vector<double> o() const { return values(o_); }
  std::vector<double> lse() const { return values(lse_); }
  std::vector<double> dq() const { return values(dq_); }
  std::vector<double> dk() const { return values(dk_); }
  std::vector<double> dv() const { return values(dv_); }

 private:
  static std::vector<double> values(const files::HostTensor& tensor);

  files::HostTensor q_, k_, v_, dout_, o_, lse_, dq_, dk_, dv_;
  Attention attention_;
};

// Prints the errors of forward and backward against the float64 oracle. False if one is larger than allowed.
bool show_accuracy(const DemoShape& shape, DType type, const Execution& execution);

// Prints time and memory of forward against naive attention for growing lengths.
void show_growth(int64_t max_len, const Execution& execution);

}  // namespace cuflash::cli
