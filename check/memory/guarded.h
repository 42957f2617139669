// A tensor in its own memory, between guard zones. Every byte that is not an element (guards, gaps between strided rows)
// holds a pattern that is NaN in every element type: a read shows in the results, and a write is detected.
#pragma once

#include <cuflash/flash_attention.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cuflash::check {

using Index = std::array<int64_t, 4>;

class GuardedTensor {
 public:
  GuardedTensor() = default;  // absent
  // offset: elements from a 64-byte boundary to the first one.
  GuardedTensor(std::string name, DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride,
                int64_t offset);

  // `count` heads (dimension 1) from `first` on, in the same memory.
  GuardedTensor heads(std::string name, int64_t first, int64_t count) const;
  // `count` elements of every row from `first` on, in the same memory.
  GuardedTensor columns(std::string name, int64_t first, int64_t count) const;
  // Of dimension d only the first `count` exist; the rest may not be written and reads as 0.
  void limit(int d, int64_t count) { existing_.shape[static_cast<size_t>(d)] = count; }

  explicit operator bool() const { return memory_ != nullptr; }
  const Tensor& view() const { return view_; }
  int64_t span() const;  // elements from the first to the last, gaps included

  // Every element with its logical index and its offset from the first, in logical order.
  void for_each(const std::function<void(const Index&, int64_t offset)>& visit) const;
  // All memory of the guarded tensor that a pointer points into, with its guards.
  struct Block {
    std::byte* begin;
    size_t bytes;
  };
  static std::optional<Block> block_around(const void* data);

  double get(int64_t offset) const;
  void set(int64_t offset, double value);

  std::vector<double> read() const;  // in logical order
  void write(const std::vector<double>& values);
  std::vector<std::byte> bytes() const;  // including guards and gaps

  void poison();  // an output: every element holds the pattern until it is written
  void freeze();  // an input: no byte may change from now on
  // For a frozen tensor that is also an output: accepts the current value of these elements.
  void accept(int64_t offset, int64_t count);
  void put_back(const std::vector<std::byte>& bytes);  // as returned by bytes()
  std::string damage() const;                          // "", or which byte changed by mistake
  std::string unwritten() const;                       // "", or which existing element still holds the pattern

 private:
  // Registered by its address while it lives, so that a view is enough to find it.
  struct Memory {
    std::vector<std::byte> bytes, frozen;
    size_t first = 0;  // byte of the first element

    explicit Memory(size_t size);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
  };

  size_t byte_of(int64_t offset) const;

  std::string name_;
  std::shared_ptr<Memory> memory_;
  Tensor view_, existing_;
};

}  // namespace cuflash::check
