// One attention problem of the benchmarks, with random tensors, ready to run repeatedly.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuflash::bench {

enum class Option {
  none,
  causal,
  dropout,
  bias,
  dbias,
  shared_dbias,
  mask,
  documents,
  alibi,
  softcap,
  window,
  padding,
  sink
};
const char* name_of(Option option);

struct Shape {
  DType type = DType::f32;
  int64_t heads = 8, length = 1024, dim = 64;
  Option option = Option::none;
};

class Workload {
 public:
  explicit Workload(const Shape& shape);
  Workload(const Workload&) = delete;

  void forward(int threads) { flash_attention_forward(attention_, outputs(), {.num_threads = threads}); }
  void backward(int threads) {
    flash_attention_backward(attention_, gradients(), {.num_threads = threads});
  }  // forward first

  // Operations for the visible pairs: two products forward, five backward.
  double forward_operations() const { return 4 * pairs() * static_cast<double>(shape_.dim); }
  double backward_operations() const { return 10 * pairs() * static_cast<double>(shape_.dim); }

 private:
  using Bytes = std::vector<std::byte>;

  double pairs() const;
  void add_option();
  ForwardOutputs outputs() { return {.o = tensor(o_), .lse = lse()}; }
  BackwardTensors gradients();
  Tensor lse() { return contiguous(lse_.data(), int64_t{1}, shape_.heads, shape_.length); }
  Tensor tensor(Bytes& data) const {
    return bhsd(static_cast<void*>(data.data()), shape_.type, 1, shape_.heads, shape_.length, shape_.dim);
  }

  Shape shape_;
  Bytes q_, k_, v_, o_, dout_, dq_, dk_, dv_;
  std::vector<float> lse_, bias_, dbias_, per_head_, dsink_;
  std::vector<uint8_t> mask_;
  std::vector<int32_t> lengths_;
  Attention attention_;
};

// N(0, 1), never zeros: some processors compute faster on zeros.
std::vector<float> random_values(int64_t count, uint32_t seed);

}  // namespace cuflash::bench
