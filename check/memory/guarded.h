// A tensor in its own memory, between guard zones. Every byte that is not an element (guards, gaps between strided rows)
// holds a pattern that is NaN in every element type: a read shows in the results, and a write is detected.
#pragma once

#include <cuflash/flash_attention.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cuflash::check {

using Index = std::array<int64_t, 4>;

int64_t span_of(const Tensor& view);  // elements from the first to the last, gaps included

// Visits the rows of a view in logical order: visit(index, offset) of the first element of each. A row is the last
// dimension, whose elements are adjacent.
template <class Visit>
void for_each_row(const Tensor& view, Visit visit) {
  if (span_of(view) == 0) return;
  Index index{};
  int64_t offset = 0;
  for (;;) {
    visit(index, offset);
    auto d = static_cast<size_t>(view.rank - 1);
    for (;;) {
      if (d == 0) return;
      --d;
      offset += view.stride[d];
      if (++index[d] < view.shape[d]) break;
      offset -= view.shape[d] * view.stride[d];
      index[d] = 0;
    }
  }
}

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
  // Declares that only the first `count` entries of dimension d exist; the others must not be written, and read as 0.
  void limit(int d, int64_t count) { existing_.shape[static_cast<size_t>(d)] = count; }

  explicit operator bool() const { return memory_ != nullptr; }
  const Tensor& view() const { return view_; }
  int64_t span() const { return span_of(view_); }
  int64_t row_length() const { return view_.shape[static_cast<size_t>(view_.rank - 1)]; }

  // Every element with its logical index and its offset from the first, in logical order.
  template <class Visit>
  void for_each(Visit visit) const {
    for_each_row(view_, [&](Index index, int64_t offset) {
      int64_t& column = index[static_cast<size_t>(view_.rank - 1)];
      for (const int64_t columns = row_length(); column < columns; ++column) visit(index, offset + column);
    });
  }
  // All memory of the guarded tensor that a pointer points into, with its guards.
  struct Block {
    std::byte* begin;
    size_t bytes;
  };
  static std::optional<Block> block_around(const void* data);

  double get(int64_t offset) const;
  void set(int64_t offset, double value);
  // `count` adjacent elements.
  void set_row(int64_t offset, int64_t count, const double* values);

  std::vector<double> read() const;  // in logical order
  void write(const std::vector<double>& values);
  std::vector<std::byte> bytes() const;  // including guards and gaps

  void poison();  // makes it an output: every element holds the pattern until it is written
  void freeze();  // makes it an input: no byte may change from now on
  // Accepts the current values of these elements in a frozen tensor that is also an output.
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
