// A valid call of merge_states, with poisoned outputs.
#pragma once

#include <cuflash/cuflash_cache.h>

#include <algorithm>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/problem/rejections.h"

namespace cuflash::rejections {

class MergeCall {
 public:
  MergeCall(DType dtype, bool packed) : dtype(dtype), packed(packed) {
    cuflash_merge_tensors_init(&tensors);
    using Shape = std::vector<int64_t>;
    const Shape o = packed ? Shape{5, 4, 3} : Shape{2, 4, 5, 3}, lse = packed ? Shape{4, 5} : Shape{2, 4, 5};
    for (cuflash_tensor* t : {&tensors.o_a, &tensors.o_b}) bind(*t, dtype, o, inputs_, 0);
    for (cuflash_tensor* t : {&tensors.lse_a, &tensors.lse_b}) bind(*t, state_type(dtype), lse, inputs_, 0);
    bind(tensors.o, dtype, o, outputs_, kPoison);
    bind(tensors.lse, state_type(dtype), lse, outputs_, kPoison);
  }
  MergeCall(const MergeCall&) = delete;
  MergeCall& operator=(const MergeCall&) = delete;

  cuflash_status run() const { return cuflash_merge_states(argument, nullptr); }
  bool untouched() const {
    return std::all_of(outputs_.begin(), outputs_.end(), [](const auto& bytes) {
      return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == kPoison; });
    });
  }
  std::vector<Slot> slots() {
    std::vector<Slot> all;
    const auto add = [&](const char* name, auto& t) {
      constexpr bool is_output = std::is_same_v<decltype(t), cuflash_mutable_tensor&>;
      const auto set_data = [&t](const void* data) { t.data = const_cast<void*>(data); };
      all.push_back({name, is_output, t.data, set_data, &t.dtype, &t.rank, t.shape, t.stride});
    };
    cuflash_merge_tensors& t = tensors;
    add("o_a", t.o_a), add("lse_a", t.lse_a), add("o_b", t.o_b), add("lse_b", t.lse_b), add("o", t.o),
        add("lse", t.lse);
    return all;
  }
  Slot slot(const std::string& name) {
    for (const Slot& slot : slots())
      if (slot.name == name) return slot;
    throw std::logic_error("no tensor " + name);
  }

  const DType dtype;
  const bool packed;
  cuflash_merge_tensors tensors;
  const cuflash_merge_tensors* argument = &tensors;

 private:
  static constexpr unsigned char kPoison = 0xa5;
  using Memory = std::list<std::vector<unsigned char>>;

  template <class TensorStruct>
  static void bind(TensorStruct& t, DType dtype, const std::vector<int64_t>& shape, Memory& memory,
                   unsigned char fill) {
    t.dtype = static_cast<int32_t>(dtype);
    t.rank = static_cast<int32_t>(shape.size());
    int64_t elements = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      t.shape[d] = shape[d], t.stride[d] = elements;
      elements *= shape[d];
    }
    t.data = memory.emplace_back(static_cast<size_t>(elements * size_of(dtype)), fill).data();
  }

  Memory inputs_, outputs_;
};

}  // namespace cuflash::rejections
