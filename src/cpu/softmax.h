// The state of an online softmax over a tile of queries: maximum m and sum l of what has been seen so far.
//
// A row that has seen nothing has m = -inf and l = 0. Subtracting such an m would give NaN, so 0 stands in for it, and
// the exponential of a hidden score, -inf, is exactly 0. A NaN score never becomes the maximum, but it does reach l.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/arena.h"
#include "cpu/exp.h"

namespace cuflash::cpu {

template <class T>
class OnlineSoftmax {
 public:
  OnlineSoftmax(Arena& arena, int64_t queries)
      : queries_(queries), m_(arena.take<T>(queries)), l_(arena.take<T>(queries)), rescale_(arena.take<T>(queries)),
        reference_(arena.take<T>(queries)) {}

  // The sink is a score that takes part in the sum and has no value; -inf for none.
  void start(double sink) {
    const T m = static_cast<T>(sink);
    std::fill_n(m_, queries_, m);
    std::fill_n(l_, queries_, m == -std::numeric_limits<T>::infinity() ? T{0} : T{1});
  }

  // s [key][query] becomes exp(s - m) with the new maximum. Returns the factor by which sums over earlier keys shrink.
  const T* update(T* s, int64_t stride, int64_t keys, int64_t queries) {
    raise_maximum(s, stride, keys, queries);
    using Vec = typename Simd<T>::Vec;
    for (int64_t q = 0; q < queries; q += Simd<T>::kLanes) {
      const Vec reference = at(reference_ + q);
      Vec sum = {};
      for (int64_t k = 0; k < keys; ++k) {
        Vec& score = at(s + k * stride + q);
        score = exp_vector(score - reference);
        sum += score;
      }
      at(l_ + q) = at(l_ + q) * at(rescale_ + q) + sum;
    }
    return rescale_;
  }

  T sum(int64_t q) const { return l_[q]; }
  T lse(int64_t q) const {
    return l_[q] == 0 ? -std::numeric_limits<T>::infinity() : m_[q] + std::log(l_[q]);
  }

 private:
  static typename Simd<T>::Vec& at(T* p) { return *reinterpret_cast<typename Simd<T>::Vec*>(p); }

  void raise_maximum(const T* s, int64_t stride, int64_t keys, int64_t queries) {
    std::copy_n(m_, queries, reference_);
    for (int64_t k = 0; k < keys; ++k)
      for (int64_t q = 0; q < queries; ++q) reference_[q] = s[k * stride + q] > reference_[q] ? s[k * stride + q] : reference_[q];
    for (int64_t q = 0; q < queries; ++q) {
      const T old = m_[q];
      m_[q] = reference_[q];
      if (m_[q] == -std::numeric_limits<T>::infinity()) reference_[q] = 0;
      rescale_[q] = old == m_[q] ? T{1} : std::exp(old - reference_[q]);
    }
  }

  int64_t queries_;
  T* m_;
  T* l_;
  T* rescale_;
  T* reference_;  // m, or 0 where that is -inf
};

}  // namespace cuflash::cpu
