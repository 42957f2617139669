// The checked mode of lengths in device memory: a copy on the host, which `describe` checks like host lengths, with the
// same sentences.
#pragma once

#include <cuflash/cuflash_cache.h>

#include <list>
#include <vector>

#include "problem/problem.h"

namespace cuflash::cuda {

class HostLengths {
 public:
  // Waits for the stream. The tensors of `attention` have been described. Throws while the stream is captured.
  HostLengths(const cuflash_attention& attention, Memory memory, void* stream);
  HostLengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, Memory memory, void* stream);
  HostLengths(const HostLengths&) = delete;
  HostLengths& operator=(const HostLengths&) = delete;

  // The attention and the cache of the call, with lengths, tables and indices in host memory.
  const cuflash_attention& attention() const { return attention_; }
  const cuflash_cache_tensors& cache() const { return cache_; }

 private:
  void copy(cuflash_tensor& t, void* stream);

  cuflash_attention attention_;
  cuflash_cache_tensors cache_{};
  std::list<std::vector<int32_t>> values_;
};

}  // namespace cuflash::cuda
