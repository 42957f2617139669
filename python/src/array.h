// Finds the elements of a Python array without a copy, by the fastest protocol that its library offers.
#pragma once

#include <cuflash/cuflash.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "dlpack.h"

namespace cuflash::python {

namespace nb = nanobind;

struct Release {
  void (*function)(void*) = nullptr;
  void operator()(void* kept) const { function(kept); }
};

struct ElementType {
  dlpack::TypeCode code;
  int bits;
};

// A view of an array that keeps its memory alive.
struct Array {
  void* data = nullptr;
  ElementType type{};
  dlpack::Device device{dlpack::kCpu, 0};
  bool read_only = false;
  int32_t rank = 0;    // 0: absent
  int64_t shape[5]{};  // in elements, as are the strides
  int64_t stride[5]{};
  std::unique_ptr<void, Release> keeper;  // what the array library must get back

  bool given() const { return rank != 0; }
  bool on_cuda() const { return device.type == dlpack::kCuda; }
  int64_t bytes() const;  // size of all elements, as if contiguous
  Array view() const;     // a copy without the keeper, valid as long as this
};

// name is the argument's, for messages. stream is where CUDA arrays will be used, for libraries that need to know.
// max_dimensions: 5 for an array that packs several of the library's tensors.
Array array_of(nb::handle object, const char* name, uintptr_t stream, int32_t max_dimensions = 4);

// array_of for a tensor that PyTorch has just allocated.
Array array_of_new(nb::handle tensor, const char* name);

// The library's name of a type; raises if it has none.
cuflash_dtype dtype_of(const Array& array, const char* name);

}  // namespace cuflash::python
