// A small random problem with its memory, for the tests of the references.
#pragma once

#include <cuflash/flash_attention.h>

#include <deque>
#include <random>
#include <vector>

#include "dtype.h"

namespace cuflash::test {

class Sample {
 public:
  struct Sizes {
    int64_t batch = 2, heads_q = 4, heads_k = 2, len_q = 3, len_k = 5, dim = 3, dim_v = 2;
  };

  explicit Sample(const Sizes& sizes, DType dtype = DType::f64, double deviation = 1) : type(dtype), size(sizes) {
    const auto& [b, hq, hk, sq, sk, d, dv] = size;
    attention.q = normal(type, deviation, b, hq, sq, d);
    attention.k = normal(type, deviation, b, hk, sk, d);
    attention.v = normal(type, 1, b, hk, sk, dv);
    dout = normal(type, 1, b, hq, sq, dv);
  }
  Sample() : Sample(Sizes{}) {}
  Sample(const Sample&) = delete;

  template <class... Extent>
  Tensor tensor(DType dtype, const std::vector<double>& values, Extent... extents) {
    auto& bytes = memory_.emplace_back(values.size() * sizeof(double) + 1);
    if (dtype == DType::boolean || dtype == DType::i32) {
      for (size_t n = 0; n < values.size(); ++n) {
        if (dtype == DType::boolean) bytes[n] = values[n] != 0;
        else reinterpret_cast<int32_t*>(bytes.data())[n] = static_cast<int32_t>(values[n]);
      }
    } else {
      store_row(bytes.data(), dtype, 0, static_cast<int64_t>(values.size()), values.data());
    }
    return contiguous(static_cast<void*>(bytes.data()), dtype, extents...);
  }
  template <class... Extent>
  Tensor normal(DType dtype, double deviation, Extent... extents) {
    std::vector<double> values(static_cast<size_t>((int64_t{1} * ... * extents)));
    for (double& x : values) x = deviation * gauss_(random_);
    return tensor(dtype, values, extents...);
  }

  const DType type;
  const Sizes size;
  Attention attention{};
  ConstTensor dout{}, dlse{};

 private:
  std::deque<std::vector<unsigned char>> memory_;
  std::mt19937_64 random_{7};
  std::normal_distribution<double> gauss_;
};

}  // namespace cuflash::test
