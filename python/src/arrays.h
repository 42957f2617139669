// The arrays of one call as the library's tensors: all on one device, heads and rows in the library's order.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "array.h"

namespace cuflash::python {

std::string device_text(dlpack::Device device);

class Arrays {
 public:
  // layout: "bhsd", "bshd" or "thd". stream: see array_of.
  Arrays(std::string_view layout, uintptr_t stream);

  void input(cuflash_tensor& out, nb::handle object, const char* name);
  void output(cuflash_mutable_tensor& out, nb::handle object, const char* name);
  // With rows and heads: q, k, v, out and their gradients.
  void rows(cuflash_tensor& out, nb::handle object, const char* name);
  void rows(cuflash_mutable_tensor& out, nb::handle object, const char* name);
  // A cache is written where the call appends to it; otherwise it may be read-only.
  void cache(cuflash_mutable_tensor& out, nb::handle object, const char* name, bool written);

  dlpack::Device device() const { return device_; }

 private:
  const Array& take(nb::handle object, const char* name);

  static constexpr size_t kMost = 20;  // backward with everything; a cache with everything has 19
  const uintptr_t stream_;
  const std::string_view layout_;
  Array arrays_[kMost];
  size_t count_ = 0;
  const char* first_name_ = nullptr;
  dlpack::Device device_{dlpack::kCpu, 0};
};

}  // namespace cuflash::python
