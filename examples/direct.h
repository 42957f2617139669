// Attention straight from its definition, in double: the reference for the examples.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

struct DirectRow {
  std::vector<double> o;
  double lse;
};

// One query against keys 0 .. count - 1; consecutive keys and values are `stride` elements apart.
template <class T>
DirectRow direct_row(const T* q, const T* k, const T* v, int64_t count, int64_t stride, int64_t dim) {
  std::vector<double> score(static_cast<size_t>(count));
  double max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[j * stride + d]);
    score[static_cast<size_t>(j)] = dot / std::sqrt(static_cast<double>(dim));
    max = std::max(max, score[static_cast<size_t>(j)]);
  }
  for (double s : score) sum += std::exp(s - max);
  DirectRow row{std::vector<double>(static_cast<size_t>(dim)), max + std::log(sum)};
  for (int64_t j = 0; j < count; ++j) {
    const double p = std::exp(score[static_cast<size_t>(j)] - row.lse);
    for (int64_t d = 0; d < dim; ++d) row.o[static_cast<size_t>(d)] += p * static_cast<double>(v[j * stride + d]);
  }
  return row;
}

template <class T>
std::vector<T> random_values(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = normal(engine);
  return values;
}

// The largest |a - b|; NaN counts as infinitely far.
template <class A, class B>
double distance(const A* a, const B* b, int64_t count) {
  double largest = 0;
  for (int64_t n = 0; n < count; ++n) {
    const double difference = std::abs(static_cast<double>(a[n]) - static_cast<double>(b[n]));
    largest = std::max(largest, std::isnan(difference) ? INFINITY : difference);
  }
  return largest;
}
