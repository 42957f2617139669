// Hands out 64-byte aligned pieces of one block. Without a block it only measures, so the code that lays out a
// workspace also computes its size, and no piece can be out of range.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checked.h"

namespace cuflash::cpu {

inline constexpr size_t kAlignment = 64;

class Arena {
 public:
  explicit Arena(void* block) : block_(static_cast<std::byte*>(block)) {}

  template <class T>
  T* take(const Checked& count) {
    T* piece = block_ ? reinterpret_cast<T*>(block_ + workspace_bytes(used_)) : nullptr;
    used_ = round_up(used_ + count * int64_t{sizeof(T)}, int64_t{kAlignment});
    return piece;
  }
  const Checked& used() const { return used_; }

 private:
  std::byte* block_;
  Checked used_;
};

}  // namespace cuflash::cpu
