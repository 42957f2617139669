// Scores and softmax of one query, as in the spec: the part that the oracle's forward and backward share.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "inputs.h"

namespace cuflash::reference {

// The sum of term(d) for d < count, in eight parts, which a processor adds side by side.
template <class Term>
double sum_of(int64_t count, Term term) {
  constexpr int64_t kParts = 8;
  double part[kParts] = {};
  int64_t d = 0;
  for (; d + kParts <= count; d += kParts)
    for (int64_t n = 0; n < kParts; ++n) part[n] += term(d + n);
  for (; d < count; ++d) part[0] += term(d);
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

inline double dot(const double* a, const double* b, int64_t count) {
  return sum_of(count, [=](int64_t d) { return a[d] * b[d]; });
}

// A sum with the error of about one rounding, however many terms it has (Neumaier's). The small weights of thousands of
// keys may all round the same way where they are added to that of one large score.
class CompensatedSum {
 public:
  void add(double x) {
    const double sum = sum_ + x;
    lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - sum) + x : (x - sum) + sum_;
    sum_ = sum;
  }
  double value() const { return std::isfinite(lost_) ? sum_ + lost_ : sum_; }  // lost_ is NaN beside an infinite term

 private:
  double sum_ = 0, lost_ = 0;
};

// Step 2 of the spec; cap 0: none.
inline double capped(double score, double cap) { return cap > 0 ? cap * std::tanh(score / cap) : score; }

// The vectors are parallel to keys: entry n belongs to key keys[n]. Hidden keys are not included, so their values cannot
// reach a result.
struct SoftmaxRow {
  std::vector<int64_t> keys;
  std::vector<double> score;
  std::vector<double> cap_slope;  // d score / d (scale * dot): 1 without softcap
  std::vector<double> p;          // before dropout
  std::vector<double> keep;       // dropout's factor
  double max, lse;                // lse is -inf for a query that sees no key
};

// q_i is the query's row, k all keys of the head, [len_k][dim].
SoftmaxRow softmax_row(const Inputs& in, const Head& head, int64_t i, const double* q_i, const double* k);

}  // namespace cuflash::reference
