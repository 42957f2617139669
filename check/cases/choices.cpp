#include "check/cases/choices.h"

#include "check/cases/random.h"

namespace cuflash::check {

Choices Choices::of_seed(uint64_t seed, uint64_t index) {
  Random of_sweep(seed);
  Random random(of_sweep.next() ^ Random(~index).next());
  std::vector<uint32_t> numbers(kLength);
  for (uint32_t& number : numbers) number = static_cast<uint32_t>(random.next() >> 32);
  return Choices(std::move(numbers));
}

// Monotonic in the number, so that a smaller number never makes a larger choice.
uint32_t Choices::below(uint32_t count) {
  const uint64_t number = next_ < numbers_.size() ? numbers_[next_++] : 0;
  return static_cast<uint32_t>(number * count >> 32);
}

}  // namespace cuflash::check
