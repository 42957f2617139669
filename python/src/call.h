// A call as Python makes it: arrays and options by name. attention.cpp turns it into the library's structs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "array.h"

namespace cuflash::python {

struct ForwardArrays {
  nb::handle q, k, v, out, lse;
};

struct BackwardArrays {
  nb::handle q, k, v, out, lse, dout, dlse, dq, dk, dv, dbias, dsink;
};

// cuflash.h documents each of them.
struct Options {
  nb::handle alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k;
  const char* layout;  // "bhsd", "bshd" or "thd": the dimensions of q, k, v, out and of their gradients
  std::optional<double> scale;
  bool causal, top_left;
  int64_t window_left, window_right;
  double softcap;
  double dropout_p;
  uint64_t dropout_seed, dropout_offset;
  int64_t max_seqlen_q, max_seqlen_k;
  uintptr_t stream;
  nb::handle allocate;  // callable(bytes) -> array: workspace on the device; None: from the library's pool
  int32_t num_threads = 0;
  bool check_lengths = false;
  bool deterministic = false;
};

void forward(const ForwardArrays& arrays, const Options& options);
void backward(const BackwardArrays& arrays, const Options& options);
std::string explain_forward(const ForwardArrays& arrays, const Options& options);
std::string explain_backward(const BackwardArrays& arrays, const Options& options);

}  // namespace cuflash::python
