// Messages that docs/troubleshooting.md quotes, each with code that provokes it.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <utility>
#include <vector>

namespace cuflash::docs {

using Environment = std::vector<std::pair<std::string, std::string>>;

struct Message {
  const char* name;
  Environment environment;  // variables of the process that provokes it
  void (*provoke)();        // throws FlashAttentionError
};

std::vector<Message> host_messages();
std::vector<Message> cuda_messages();
std::vector<Message> cache_messages();

// A small valid problem. Each message breaks one thing of it.
struct Call {
  std::vector<float> q, k, v, o, lse, grads;
  Attention attention;
  ForwardOutputs outputs;
  BackwardTensors tensors;
  Execution execution;

  Call();
  // Backward of so many rows that no machine has enough scratch. No row is ever accessed: only the gradient of sinks is
  // requested, [kManyHeads] in the caller's memory.
  static constexpr int64_t kManyHeads = 1 << 16;
  void make_huge(const void* sink, void* dsink);

  void forward() const { flash_attention_forward(attention, outputs, execution); }
  void backward() const { flash_attention_backward(attention, tensors, execution); }
};

}  // namespace cuflash::docs
