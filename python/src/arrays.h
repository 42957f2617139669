// The arrays of one call as the library's tensors: all on one device, heads and rows in the library's order.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "array.h"
#include "options.h"

namespace cuflash::python {

std::string device_text(dlpack::Device device);

// Whether k and v, or q, k and v, are packed along the third dimension from the end of one array: (q, kv, None) or
// (qkv, None, None).
enum class Packing { none, kv, qkv };

Packing packing_of(nb::handle k, nb::handle v);

// Raises unless the third dimension from the end is this many.
void require_parts(const Array& array, int64_t count, const char* name);

// Three arrays, or fewer if they are packed, and the names that messages use for them.
struct Triple {
  nb::handle q, k, v;
  const char *name_q, *name_k, *name_v, *name_kv, *name_qkv;
};

class Arrays {
 public:
  // layout: "bhsd", "bshd" or "thd". stream: see array_of.
  Arrays(std::string_view layout, uintptr_t stream);

  // Notes that this object is already read. Both arguments must outlive this.
  void know(nb::handle object, const Array& array) { known_[known_count_++] = {object, &array}; }

  void input(cuflash_tensor& out, nb::handle object, const char* name);
  void output(cuflash_mutable_tensor& out, nb::handle object, const char* name);
  // Takes an array with rows and heads: q, k, v, out or one of their gradients.
  void rows(cuflash_tensor& out, nb::handle object, const char* name);
  void rows(cuflash_mutable_tensor& out, nb::handle object, const char* name);
  // q, k and v of a call whose inputs are packed in this way, or their gradients.
  template <class Tensor>
  void triple(Tensor& q, Tensor& k, Tensor& v, const Triple& given, Packing packing);
  // A call that appends writes to the cache; otherwise the cache may be read-only.
  void cache(cuflash_mutable_tensor& out, nb::handle object, const char* name, bool written);

  dlpack::Device device() const { return device_; }

 private:
  struct Known {
    nb::handle object;
    const Array* array;
  };

  Array read(nb::handle object, const char* name, int32_t max_dimensions) const;
  // Keeps the array's memory alive as long as this object.
  Array take(nb::handle object, const char* name, int32_t max_dimensions = 4);
  template <class Tensor>
  void parts(std::initializer_list<Tensor*> out, nb::handle object, const char* name);

  static constexpr size_t kMax = 0 CUFLASH_BACKWARD_ARRAYS(CUFLASH_COUNT) CUFLASH_ATTENTION_ARRAYS(CUFLASH_COUNT);
  static_assert(kMax >= 0 CUFLASH_CACHE_CALL_ARRAYS(CUFLASH_COUNT) CUFLASH_CACHE_ARRAYS(CUFLASH_COUNT, CUFLASH_COUNT));
  const uintptr_t stream_;
  const std::string_view layout_;
  decltype(Array::keeper) keepers_[kMax]{};
  size_t count_ = 0;
  Known known_[kMax];
  size_t known_count_ = 0;
  const char* first_name_ = nullptr;
  dlpack::Device device_{dlpack::kCpu, 0};
};

}  // namespace cuflash::python
