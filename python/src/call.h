// A call as Python makes it: arrays and options by name. attention.cpp and cache.cpp turn it into the library's structs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "array.h"

namespace cuflash::python {

// Where and how a call runs.
struct Place {
  uintptr_t stream;
  nb::handle allocate;  // callable(bytes) -> array: workspace on the device; None: from the library's pool
  int32_t num_threads = 0;
  bool check_lengths = false;
  bool deterministic = false;
};

struct ForwardArrays {
  nb::handle q, k, v, out, lse;
};

struct BackwardArrays {
  nb::handle q, k, v, out, lse, dout, dlse, dq, dk, dv, dbias, dsink;
};

// cuflash.h documents each of them.
struct Options : Place {
  nb::handle alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k;
  const char* layout;  // "bhsd", "bshd" or "thd": the dimensions of q, k, v, out and of their gradients
  std::optional<double> scale;
  bool causal, top_left;
  int64_t window_left, window_right;
  double softcap;
  double dropout_p;
  uint64_t dropout_seed, dropout_offset;
  int64_t max_seqlen_q, max_seqlen_k;
};

void forward(const ForwardArrays& arrays, const Options& options);
void backward(const BackwardArrays& arrays, const Options& options);
std::string explain_forward(const ForwardArrays& arrays, const Options& options);
std::string explain_backward(const BackwardArrays& arrays, const Options& options);

// k and v are what is appended, under the names that flash_attn has for all of this.
struct CacheArrays {
  nb::handle q, k_cache, v_cache, k, v, out, lse;
  nb::handle cache_seqlens, block_table, cache_batch_idx, cache_leftpad, cu_seqlens_new, seqlens_new;
  nb::handle rotary_cos, rotary_sin, alibi_slopes, sink, cu_seqlens_q, seqlens_q;
};

// cuflash_cache.h documents each of them.
struct CacheOptions : Place {
  const char* layout;  // the dimensions of every array that has four of them
  std::optional<double> scale;
  bool causal;
  int64_t window_left, window_right;
  double softcap;
  int64_t max_seqlen_q, max_seqlen_new;
  bool rotary_interleaved, rotary_one_position;
  int32_t num_splits;
};

void attend_cache(const CacheArrays& arrays, const CacheOptions& options);
std::string explain_attend_cache(const CacheArrays& arrays, const CacheOptions& options);

struct MergeArrays {
  nb::handle o_a, lse_a, o_b, lse_b, out, lse;
};

struct MergeOptions : Place {
  const char* layout;
};

void merge_states(const MergeArrays& arrays, const MergeOptions& options);

}  // namespace cuflash::python
