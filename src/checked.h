// Overflow-safe products and sums of extents. Each extent of a call may be as large as 2^31 - 1, so a product of three
// of them may not fit into 64 bits. A result that overflows continues as a floating-point estimate, so that the error
// message can state the total size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>

#include "error.h"

namespace cuflash {

// A size or count; never negative.
class Checked {
 public:
  constexpr Checked(int64_t value = 0) : value_(value) {}

  bool fits() const { return estimate_ == 0; }
  // The smaller of this number and the limit.
  int64_t at_most(int64_t limit) const { return fits() && value_ < limit ? value_ : limit; }
  // Throws if the number does not fit. `what` begins a sentence that continues with the number: "q: the number of
  // tiles is".
  int64_t value(const char* what) const {
    if (!fits()) reject(what, " ", *this, ", more than ", kLargest, "; split the call");
    return value_;
  }

  friend Checked operator+(const Checked& a, const Checked& b) {
    Checked sum;
    if (a.fits() && b.fits() && !__builtin_add_overflow(a.value_, b.value_, &sum.value_)) return sum;
    return estimate(a.magnitude() + b.magnitude());
  }
  // A tensor with an extent of 0 is empty even if the product of its other extents overflows.
  friend Checked operator*(const Checked& a, const Checked& b) {
    if ((a.fits() && a.value_ == 0) || (b.fits() && b.value_ == 0)) return 0;
    Checked product;
    if (a.fits() && b.fits() && !__builtin_mul_overflow(a.value_, b.value_, &product.value_)) return product;
    return estimate(a.magnitude() * b.magnitude());
  }
  friend Checked round_up(const Checked& a, int64_t unit) {
    const Checked end = a + (unit - 1);
    return end.fits() ? Checked(end.value_ / unit * unit) : end;
  }
  friend std::ostream& operator<<(std::ostream& out, const Checked& a) {
    return a.fits() ? out << a.value_ : out << a.estimate_;
  }

  static constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

 private:
  static Checked estimate(double magnitude) {
    Checked a;
    a.estimate_ = magnitude;
    return a;
  }
  double magnitude() const { return fits() ? static_cast<double>(value_) : estimate_; }

  int64_t value_;
  double estimate_ = 0;  // if not 0, value_ is meaningless
};

// Workspace size of a call, rejected if it cannot be addressed.
inline size_t workspace_bytes(const Checked& bytes) {
  if (!bytes.fits())
    reject("workspace: this call needs ", bytes, " bytes, more than the ", Checked::kLargest,
           " that can be addressed; split it into calls over fewer sequences, heads or queries");
  return static_cast<size_t>(bytes.at_most(Checked::kLargest));
}

}  // namespace cuflash
