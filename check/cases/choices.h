// A sequence of numbers that determines a random test case. Every decision consumes the next number, so that the same
// sequence always makes the same case. Smaller numbers make simpler cases, so that a property test can shrink it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cuflash::check {

class Choices {
 public:
  // More than the largest case consumes.
  static constexpr size_t kLength = 160;

  explicit Choices(std::vector<uint32_t> numbers) : numbers_(std::move(numbers)) {}
  // Number `index` of the sweep that starts at `seed`.
  static Choices of_seed(uint64_t seed, uint64_t index);

  // 0 .. count - 1; 0 when the sequence is used up.
  uint32_t below(uint32_t count);
  bool chance(uint32_t one_in) { return below(one_in) == one_in - 1; }  // the simple answer, false, is number 0
  int64_t between(int64_t low, int64_t high) { return low + below(static_cast<uint32_t>(high - low + 1)); }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[below(static_cast<uint32_t>(values.size()))];
  }

 private:
  std::vector<uint32_t> numbers_;
  size_t next_ = 0;
};

}  // namespace cuflash::check
