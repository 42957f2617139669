// The checked mode of lengths in device memory: a copy of them on the host, where describe checks them as it does host
// lengths, with the same sentences.
#pragma once

#include <cuflash/cuflash.h>

#include <array>
#include <vector>

#include "problem/problem.h"

namespace cuflash::cuda {

class HostLengths {
 public:
  // Waits for the stream. The tensors of `attention` have been described. Refused while the stream is captured.
  HostLengths(const cuflash_attention& attention, Place place, void* stream);
  HostLengths(const HostLengths&) = delete;
  HostLengths& operator=(const HostLengths&) = delete;

  // The same attention with lengths in host memory.
  const cuflash_attention& attention() const { return attention_; }

 private:
  cuflash_attention attention_;
  std::array<std::vector<int32_t>, 4> values_;
};

}  // namespace cuflash::cuda
