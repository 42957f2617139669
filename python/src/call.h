// A call as Python makes it: arrays and options by name. attention.cpp and cache.cpp fill the library's structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "arrays.h"
#include "options.h"

namespace cuflash::python {

// The device, stream and execution options of a call.
struct Runtime {
  uintptr_t stream;
  nb::handle allocate;  // callable(bytes) -> array: workspace on the device; None: from the library's pool
  int32_t num_threads = 0;
  bool check_lengths = false;
  bool deterministic = false;
};

// Scratch memory of one call.
struct Workspace {
  nb::object owner;
  Array array;
};

using Allocate = std::function<Workspace(size_t bytes)>;

#define CUFLASH_HANDLE(name, ...) nb::handle name;
#define CUFLASH_MEMBER(type, name, value) type name = value;

struct ForwardArrays {
  CUFLASH_FORWARD_ARRAYS(CUFLASH_HANDLE)
};

struct BackwardArrays {
  CUFLASH_BACKWARD_ARRAYS(CUFLASH_HANDLE)
};

// cuflash.h documents each of them.
struct Options : Runtime {
  CUFLASH_ATTENTION_ARRAYS(CUFLASH_HANDLE)
  const char* layout;  // "bhsd", "bshd" or "thd": the dimensions of q, k, v, out and of their gradients
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_MEMBER, CUFLASH_MEMBER)
};

void forward(const ForwardArrays& arrays, const Options& options);
void backward(const BackwardArrays& arrays, const Options& options);
// forward with Arrays that may have read some of the arrays already, and with the caller's function for the workspace.
void forward(Arrays& known, const ForwardArrays& arrays, const Options& options, const Allocate& allocate);
void backward(Arrays& known, const BackwardArrays& arrays, const Options& options, const Allocate& allocate);
std::string explain_forward(const ForwardArrays& arrays, const Options& options);
std::string explain_backward(const BackwardArrays& arrays, const Options& options);

// The arrays of a call over a KV cache. As in flash_attn, k and v are the rows to append.
struct CacheArrays {
  CUFLASH_CACHE_CALL_ARRAYS(CUFLASH_HANDLE)
  CUFLASH_CACHE_ARRAYS(CUFLASH_HANDLE, CUFLASH_HANDLE)
};

// cuflash_cache.h documents each of them.
struct CacheOptions : Runtime {
  const char* layout;  // the dimensions of every array that has four of them
  CUFLASH_CACHE_OPTIONS(CUFLASH_MEMBER, CUFLASH_MEMBER, CUFLASH_MEMBER)
};

void attend_cache(const CacheArrays& arrays, const CacheOptions& options);
std::string explain_attend_cache(const CacheArrays& arrays, const CacheOptions& options);

struct MergeArrays {
  CUFLASH_MERGE_ARRAYS(CUFLASH_HANDLE)
};

struct MergeOptions : Runtime {
  const char* layout;
};

void merge_states(const MergeArrays& arrays, const MergeOptions& options);

#undef CUFLASH_HANDLE
#undef CUFLASH_MEMBER

}  // namespace cuflash::python
