// Copies of the caller's integers in host memory that a call relies on: lengths, block tables, indices. Another thread
// of the caller may write to them at any time, so each is read once, the copy is checked, and only the copy is used
// afterwards.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace cuflash {

// Owns the copies and must outlive the problem that points to them.
class Snapshot {
 public:
  Snapshot() {}  // not defaulted, so that Snapshot{} does not zero the inline bytes
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Returns uninitialised memory, inline if it fits, so that small problems do not allocate.
  template <class T>
  T* take(int64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    const size_t bytes = rounded_size(count, sizeof(T));
    if (bytes > kInlineBytes - used_) {
      std::unique_ptr<std::byte[]>& block = blocks_.at(held_++);
      block.reset(new std::byte[bytes]);
      return reinterpret_cast<T*>(block.get());
    }
    used_ += bytes;
    return reinterpret_cast<T*>(inline_ + used_ - bytes);
  }

  const int32_t* copy(const void* from, int64_t count) {
    int32_t* to = take<int32_t>(count);
    read_once(from, count, to);
    return to;
  }

  // Later code must use `to`. Without the fence the compiler may load from `from` a second time.
  static void read_once(const void* from, int64_t count, int32_t* to) {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof *to);
    std::atomic_signal_fence(std::memory_order_acq_rel);
  }

 private:
  static constexpr size_t kInlineBytes = 4096, kAlignment = alignof(int64_t);
  static constexpr size_t kMaxBlocks = 8;  // no call takes more arrays

  static size_t rounded_size(int64_t count, size_t size) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(count), size, &bytes) ||
        __builtin_add_overflow(bytes, kAlignment - 1, &bytes))
      throw std::bad_alloc();
    return bytes / kAlignment * kAlignment;
  }

  alignas(kAlignment) std::byte inline_[kInlineBytes];
  size_t used_ = 0, held_ = 0;
  std::array<std::unique_ptr<std::byte[]>, kMaxBlocks> blocks_;
};

}  // namespace cuflash
