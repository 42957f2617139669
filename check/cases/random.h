// Random numbers for test data: the same on every machine and standard library, unlike <random>'s distributions.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace cuflash::check {

// splitmix64 (Steele, Lea, Flood 2014): every state gives a well mixed number, so that neighbouring seeds are independent.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t count) { return next() % count; }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }
  // Draws from 4096 fixed numbers with either sign: much faster, and as good for the elements of a tensor.
  void normals(double* values, int64_t count, double sigma) {
    static const std::vector<double> some = [] {
      Random random(0);
      std::vector<double> numbers(kSome);
      for (double& number : numbers) number = random.normal();
      return numbers;
    }();
    uint64_t bits = 0;
    for (int64_t n = 0; n < count; ++n, bits >>= 16) {
      if (n % 4 == 0) bits = next();
      values[n] = (bits & kSome ? sigma : -sigma) * some[bits % kSome];
    }
  }

 private:
  static constexpr uint64_t kSome = 4096;

  uint64_t state_;
};

}  // namespace cuflash::check
