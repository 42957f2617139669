#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "dtype.h"

namespace cuflash::check {

namespace {

// The numbers of the spec's table, for one type of inputs.
struct Limits {
  double roundoff;                  // unit of the computing type
  double small;                     // RMS error that a sum in another order may have, relative
  double output, gradient;          // largest error, relative (see scale_of)
  double naive_factor, rms_factor;  // times the naive error
  double slope, cosine;             // |slope - 1|, 1 - cosine
  double tiny;  // a weight below 2^-126 may count as 0, so no digit of such a small result is reliable
};

bool is_16_bit(DType type) { return type == DType::f16 || type == DType::bf16; }

Limits limits_of(DType type) {
  if (type == DType::f64) return {0x1p-53, 1e-13, 1e-12, 1e-12, 4, 2, 1e-12, 1e-20, 1e-300};
  if (type == DType::f32) return {0x1p-24, 1e-6, 1e-5, 1e-4, 4, 2, 1e-5, 1e-9, 1e-34};
  return {0x1p-24, 1e-6, 1e-5, 1e-4, 2, 1.1, 2e-3, 1e-5, 1e-34};
}

double rounded(DType type, double value) {
  double bits = 0, result = 0;  // 8 bytes hold an element of any type
  store_row(&bits, type, 0, 1, &value);
  load_row(&bits, type, 0, 1, &result);
  return result;
}

void round_all(DType type, std::vector<double>& values) {
  constexpr size_t kBlock = 256;
  double bits[kBlock];  // room for so many elements of any type
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const auto count = static_cast<int64_t>(std::min(kBlock, values.size() - begin));
    store_row(bits, type, 0, count, values.data() + begin);
    load_row(bits, type, 0, count, values.data() + begin);
  }
}

double finite_or_zero(const std::vector<double>& values, size_t n) {
  return n < values.size() && std::isfinite(values[n]) ? values[n] : 0;
}

class Comparison {
 public:
  Comparison(const std::string& name, Quantity quantity, DType type, DType stored, const std::vector<double>& actual,
             const std::vector<double>& expected, const std::vector<double>& naive, const std::vector<double>& noise,
             bool correlated)
      : name_(name),
        quantity_(quantity),
        type_(type),
        stored_(stored),
        limits_(limits_of(type)),
        actual_(actual),
        expected_(expected),
        naive_(naive),
        noise_(noise),
        correlated_(correlated) {}

  std::string disagreement() {
    if (std::string text = sizes(); !text.empty()) return text;
    if (std::string text = special_values(); !text.empty()) return text;
    if (compared_.empty()) return "";
    if (quantity_ == Quantity::lse) return lse();
    measure();
    for (auto rule : {&Comparison::largest_error, &Comparison::rms_error, &Comparison::slope, &Comparison::cosine}) {
      if (std::string text = (this->*rule)(); !text.empty()) return text;
    }
    return "";
  }

 private:
  const std::string& name_;
  const Quantity quantity_;
  const DType type_, stored_;
  const Limits limits_;
  const std::vector<double>&actual_, &expected_, &naive_, &noise_;
  bool correlated_;

  std::vector<size_t> compared_;  // elements that are finite on both sides
  std::vector<double> rounded_;   // parallel to compared_: the correctly rounded value, see nearest_rounding
  double largest_ = 0;            // |expected|
  double unit_ = 1;               // a power of two near it: squares of 1e-160 would be 0
  double per_unit_ = 1;           // 1 / unit_: multiplying is quicker than dividing, and exact, too
  double naive_largest_ = 0;      // |naive - expected|
  double count_ = 0;              // effective number of elements that carry the energy of expected; zeros do not
  // Root mean squares of expected, of the errors of actual, naive and the rounded value, and of noise.
  double rms_expected_ = 0, rms_actual_ = 0, rms_naive_ = 0, rms_rounded_ = 0, rms_noise_ = 0;
  double slope_ = 0, naive_slope_ = 0;  // minus 1; for actual beyond rounding

  // Checks that sizes are equal.
  std::string sizes() const {
    if (actual_.size() == expected_.size() && naive_.size() == expected_.size() &&
        (noise_.empty() || noise_.size() == expected_.size())) {
      return "";
    }
    return name_ + ": " + std::to_string(actual_.size()) + " elements, expected " + std::to_string(expected_.size()) +
           " (naive " + std::to_string(naive_.size()) + ", noise " + std::to_string(noise_.size()) + ")";
  }

  // Checks that results have NaN and the same Inf exactly where the oracle has them, unless a finite value is too large
  // for the stored type.
  std::string special_values() {
    compared_.reserve(expected_.size());
    for (size_t n = 0; n < expected_.size(); ++n) {
      const double a = actual_[n], e = expected_[n];
      if (std::isfinite(e) && std::isfinite(a)) {
        compared_.push_back(n);
        continue;
      }
      const bool same = std::isnan(e) ? std::isnan(a) : a == e;
      const bool overflow = std::isfinite(e) && std::isinf(a) && nearest_rounding(n) == a;
      if (!same && !overflow) return name_ + ": NaN and Inf are not in the same places:" + element(n);
    }
    return "";
  }

  // |LSE error| <= 1e-4 + 1e-5 |LSE| (f64: 1e-12), or the effect of the scores' rounding.
  std::string lse() const {
    double naive_error = 0;
    for (size_t n : compared_) naive_error = std::max(naive_error, std::abs(finite_error(naive_, n)));
    for (size_t n : compared_) {
      const double e = std::abs(expected_[n]);
      double allowed = type_ == DType::f64 ? 1e-12 * std::max(1.0, e) : 1e-4 + 1e-5 * e;
      if (!is_16_bit(type_)) allowed = std::max(allowed, limits_.naive_factor * naive_error);
      allowed = std::max(allowed, noise_factor() * finite_or_zero(noise_, n));
      if (std::abs(actual_[n] - expected_[n]) > allowed) return report("LSE error", n, allowed);
    }
    return "";
  }

  // If expected is within f32 noise of the midpoint between two values of the stored type, either is a correct rounding.
  double nearest_rounding(size_t n) const {
    return std::clamp(actual_[n], rounded(stored_, expected_[n] - reach(n)), rounded(stored_, expected_[n] + reach(n)));
  }
  double reach(size_t n) const { return 4 * limits_.roundoff * std::abs(expected_[n]); }

  // nearest_rounding of all compared elements.
  void round_compared() {
    std::vector<double> from, to;
    from.reserve(compared_.size()), to.reserve(compared_.size());
    for (size_t n : compared_) from.push_back(expected_[n] - reach(n)), to.push_back(expected_[n] + reach(n));
    round_all(stored_, from), round_all(stored_, to);
    rounded_.resize(compared_.size());
    for (size_t x = 0; x < compared_.size(); ++x) rounded_[x] = std::clamp(actual_[compared_[x]], from[x], to[x]);
  }

  // 0 if the value is not finite: the naive evaluation may overflow where a good one does not.
  double finite_error(const std::vector<double>& values, size_t n) const {
    return std::isfinite(values[n]) ? values[n] - expected_[n] : 0;
  }

  void measure() {
    for (size_t n : compared_) largest_ = std::max(largest_, std::abs(expected_[n]));
    if (largest_ > 0) unit_ = std::ldexp(1.0, std::max(std::ilogb(largest_), -1022)), per_unit_ = 1 / unit_;
    double ee = 0, e4 = 0, error = 0, naive = 0, rounding = 0, noise = 0, beyond = 0, naive_beyond = 0;
    round_compared();
    for (size_t x = 0; x < compared_.size(); ++x) {
      const size_t n = compared_[x];
      const double r = rounded_[x], e = expected_[n] * per_unit_;
      const double off = (actual_[n] - expected_[n]) * per_unit_, rounding_error = (r - expected_[n]) * per_unit_;
      const double naive_error = finite_error(naive_, n) * per_unit_, noise_n = finite_or_zero(noise_, n) * per_unit_;
      naive_largest_ = std::max(naive_largest_, std::abs(naive_error) * unit_);
      ee += e * e, e4 += e * e * e * e, beyond += (off - rounding_error) * e, naive_beyond += naive_error * e;
      error += off * off, rounding += rounding_error * rounding_error;
      naive += naive_error * naive_error, noise += noise_n * noise_n;
    }
    const double size = static_cast<double>(compared_.size());
    count_ = e4 > 0 ? std::max(1.0, ee / e4 * ee) : size;
    const auto rms = [&](double squares) { return unit_ * std::sqrt(squares / size); };
    rms_expected_ = rms(ee), rms_actual_ = rms(error), rms_naive_ = rms(naive);
    rms_rounded_ = rms(rounding), rms_noise_ = rms(noise);
    if (ee > 0) slope_ = beyond / ee, naive_slope_ = naive_beyond / ee;
  }

  // 1 - cosine of the angle between expected and value(x), x counting the compared elements. Computed from the
  // residual of the fit, because subtracting two numbers near 1 would leave no digits.
  template <class Value>
  double angle(Value value) const {
    double ee = 0, vv = 0, ve = 0, residual = 0;
    for (size_t x = 0; x < compared_.size(); ++x) {
      const double e = expected_[compared_[x]] * per_unit_, v = value(x) * per_unit_;
      ee += e * e, vv += v * v, ve += v * e;
    }
    if (ve <= 0) return 1;
    const double slope = ve / ee;
    for (size_t x = 0; x < compared_.size(); ++x)
      residual += std::pow((value(x) - slope * expected_[compared_[x]]) * per_unit_, 2);
    return residual / vv / (1 + ve / std::sqrt(vv * ee));
  }

  // The scale of the largest error. Outputs of N(0,1) inputs are about 1; gradients have no such scale.
  double scale_of() const {
    const bool relative = type_ == DType::f64 || (type_ == DType::f32 && quantity_ == Quantity::gradient);
    return relative ? largest_ : std::max(1.0, largest_);
  }

  // 16-bit: |error| <= 2 x naive + 1e-5 (gradients 1e-4). f32: 1e-5, gradients 1e-4 of the largest; f64: 1e-12 of it;
  // or 4 x naive. Or three times the noise, if that is more. Each beyond the final rounding.
  std::string largest_error() const {
    const double floor = (quantity_ == Quantity::output ? limits_.output : limits_.gradient) * scale_of();
    const double naive = limits_.naive_factor * few_draws_factor() * naive_largest_;
    const double limit = is_16_bit(type_) ? naive + floor : std::max(naive, floor);
    for (size_t x = 0; x < compared_.size(); ++x) {
      const size_t n = compared_[x];
      const double computing = std::max(limit, noise_factor() * finite_or_zero(noise_, n)) + limits_.tiny;
      // Rounding keeps the order of numbers, and actual is one of the stored type: most need no rounding to see it.
      if (std::abs(actual_[n] - expected_[n]) <= computing / 2) continue;
      const double from = rounded(stored_, expected_[n] - computing), to = rounded(stored_, expected_[n] + computing);
      if (!(actual_[n] >= from && actual_[n] <= to)) return report("largest error", n, computing);
    }
    return "";
  }

  // If elements share errors, as those of constant rows do, the naive evaluation has drawn only a few, and the largest of
  // them is a poor estimate. Errors that differ by less than the last digits of the exact result are one draw.
  double few_draws_factor() const {
    if (!correlated_) return 1;
    std::vector<double> errors;
    for (size_t n : compared_) errors.push_back(finite_error(naive_, n));
    std::sort(errors.begin(), errors.end());
    const double same = 1e-6 * naive_largest_;
    int64_t draws = 1;
    for (size_t n = 1; n < errors.size(); ++n) draws += errors[n] - errors[n - 1] > same;
    return 1 + 2 / std::sqrt(static_cast<double>(draws));
  }

  // A few elements estimate the naive error poorly, hence the 1 / sqrt(count).
  double baseline_factor() const { return limits_.rms_factor * (1 + 4 / std::sqrt(count_)); }
  double small_errors() const { return rms_noise_factor() * rms_noise_ + limits_.small * rms_expected_ + limits_.tiny; }

  // The noise bound assumes roundings of random sign, which cancel; equal roundings add up. The score of two constant
  // rows is a sum of equal products, all of which round the same way, so such inputs may exceed the bound by more: one
  // after the other, 224 of them were off by 6.4 times the noise, and 256 may be by 10, if half of them round by half a
  // digit.
  static constexpr double kCorrelated = 10;
  double noise_factor() const { return correlated_ ? kCorrelated : 3; }  // for the error of one element
  // The allowed multiple of the noise in an RMS error. In 16-bit types the last rounding outweighs that of any sum.
  double rms_noise_factor() const { return correlated_ && !is_16_bit(type_) ? kCorrelated : 2; }

  // An error far below the last digit may still change a rounding.
  static constexpr double kRoundedOtherwise = 1.02;

  // The RMS error of the naive evaluation, or of one rounding, plus the noise.
  double allowed_rms() const {
    return std::max(baseline_factor() * rms_naive_, kRoundedOtherwise * rms_rounded_) + small_errors();
  }
  std::string rms_error() const {
    if (rms_actual_ <= allowed_rms()) return "";
    return report("RMS error", worst(), allowed_rms(), rms_actual_);
  }

  // Slope and cosine are meaningless for values hardly larger than their allowed error.
  bool has_direction() const { return allowed_rms() <= 0.1 * rms_expected_; }

  // |slope - 1| <= 2e-3 (f32 1e-5, f64 1e-12), beyond rounding and twice that of the naive evaluation. Errors of random
  // sign move the slope of `count` elements by their RMS / sqrt(count), which is allowed for. The noise of f32 and f64
  // may have one sign: with error e and expected x, |slope - 1| = |sum e x| / sum x^2 <= rms(e) / rms(x) (Cauchy-Schwarz),
  // with equality where every element has the same relative error. So the slope may be off by all of the noise that the
  // RMS rule allows. dV of one query over equal keys is such a case: dV_jd = exp(s_j - LSE) dO_d, each s_j is the same
  // sum of equal products, and backward's order of that sum is not the one that LSE was computed with.
  std::string slope() const {
    if (!has_direction()) return "";
    const double count = correlated_ ? 1 : count_;
    const double random = 3 / std::sqrt(count) * std::max(rms_naive_, rms_rounded_);
    const double noise = (is_16_bit(type_) ? std::min(1.0, 4 / std::sqrt(count)) : rms_noise_factor()) * rms_noise_;
    const double allowed = limits_.slope + 2 * std::abs(naive_slope_) + (random + noise + limits_.tiny) / rms_expected_;
    return std::abs(slope_) <= allowed ? "" : report("slope against the oracle", worst(), allowed, 1 + slope_);
  }

  // 1 - cosine <= 1e-5 (f32 1e-9, f64 1e-20) beyond that of the naive evaluation, of one rounding and of the noise.
  std::string cosine() const {
    if (!has_direction()) return "";
    const double measured = angle([&](size_t x) { return actual_[compared_[x]]; });
    const double rounding = angle([&](size_t x) { return rounded_[x]; });
    const double naive = angle([&](size_t x) { return expected_[compared_[x]] + finite_error(naive_, compared_[x]); });
    const double baseline = std::max(baseline_factor() * baseline_factor() * naive, kRoundedOtherwise * rounding);
    const double allowed = limits_.cosine + baseline + std::pow(small_errors() / rms_expected_, 2);
    return measured <= allowed ? "" : report("1 - cosine", worst(), allowed, measured);
  }

  size_t worst() const {
    return *std::max_element(compared_.begin(), compared_.end(), [&](size_t x, size_t y) {
      return std::abs(actual_[x] - expected_[x]) < std::abs(actual_[y] - expected_[y]);
    });
  }

  std::string report(const char* rule, size_t n, double allowed, double measured) const {
    char text[160];
    std::snprintf(text, sizeof text, " of %zu elements is %.6g, allowed %.3g; worst", compared_.size(), measured,
                  allowed);
    return name_ + ": " + rule + text + element(n);
  }
  std::string report(const char* rule, size_t n, double allowed) const {
    char text[160];
    std::snprintf(text, sizeof text, ", allowed %.3g;", allowed);
    return name_ + ": " + rule + text + element(n);
  }
  std::string element(size_t n) const {
    char text[200];
    std::snprintf(text, sizeof text, " element %zu of %zu is %.9g, expected %.9g, naive %.9g (%s inputs, stored as %s)",
                  n, expected_.size(), actual_[n], expected_[n], naive_[n], name_of(type_), name_of(stored_));
    return text;
  }
};

}  // namespace

std::string disagreement(const std::string& name, Quantity quantity, DType type, DType stored,
                         const std::vector<double>& actual, const std::vector<double>& expected,
                         const std::vector<double>& naive, const std::vector<double>& noise, bool correlated) {
  return Comparison(name, quantity, type, stored, actual, expected, naive, noise, correlated).disagreement();
}

}  // namespace cuflash::check
