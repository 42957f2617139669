// Hands out 64-byte aligned pieces of one block. Over no block it only measures, so the code that lays out a workspace
// is also the code that says how large it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuflash::cpu {

inline constexpr size_t kAlignment = 64;

class Arena {
 public:
  explicit Arena(void* block) : block_(static_cast<std::byte*>(block)) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = block_ ? reinterpret_cast<T*>(block_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

}  // namespace cuflash::cpu
