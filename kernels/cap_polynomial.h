// Softcap as a polynomial in the dot product, whose coefficients contain scale and cap: the host computes them, and
// attn/softcap.h takes them.
#pragma once

#include "shared_function.h"

namespace cuflash {

// The polynomial approximates log2(e) softcap tanh(scale x / softcap), the exponent of 2 for a dot product x.
struct CapPolynomial {
  float coefficient[3];  // coefficients of x, x^3 and x^5
  float limit;           // largest |x| in range; 0: the coefficients would not be normal floats with some room
  float twice_log2;      // x times this is the exponent of 2 of exp(2 scale x / softcap)
  float drop;            // -2 log2(e) softcap
};

CUFLASH_SHARED_FUNCTION CapPolynomial cap_polynomial(double scale, double softcap) {
  // The polynomial has the least error relative to tanh below kRange, 4.3e-6.
  constexpr double kRange = 0.375, kTanh[3] = {0.99999571, -0.33278078, 0.1226486};
  constexpr double kToPower = 1.4426950408889634, kMax = 1e30, kMaxLimit = 1e15;
  const auto is_between = [](double x, double most) { return x <= most && x >= 1 / most; };
  const double unit = scale / softcap, limit = kRange / (unit < 0 ? -unit : unit);
  CapPolynomial p{{},
                  static_cast<float>(limit),
                  static_cast<float>(2 * kToPower * unit),
                  static_cast<float>(-2 * kToPower * softcap)};
  double factor = scale * kToPower;
  bool fits = is_between(limit, kMaxLimit);
  for (int n = 0; n < 3; ++n, factor *= unit * unit) {
    const double c = kTanh[n] * factor;
    fits = fits && is_between(c < 0 ? -c : c, kMax);
    p.coefficient[n] = static_cast<float>(c);
  }
  return fits ? p : CapPolynomial{};
}

// The exponent and the derivative of softcap, for backward.
struct CapDerivative {
  CapPolynomial exponent;
  float slope[3];  // 1 - tanh^2 in even powers of x, below the same limit
  float top;       // log2(e) softcap
  float hidden;    // a dot product whose exponent is so low that its probability is 0, while its slope is finite
};

CUFLASH_SHARED_FUNCTION CapDerivative cap_derivative(double scale, double softcap) {
  // The polynomial has the least error below the range of the exponent's, 2.9e-5.
  constexpr double kSlope[3] = {0.99997154, -0.9962681, 0.59352071}, kToPower = 1.4426950408889634;
  const CapPolynomial exponent = cap_polynomial(scale, softcap);
  if (!(exponent.limit > 0)) return {};
  CapDerivative d{exponent, {}, static_cast<float>(kToPower * softcap), -1e4f * exponent.limit};
  double factor = 1;
  for (int n = 0; n < 3; ++n, factor *= scale / softcap * (scale / softcap))
    d.slope[n] = static_cast<float>(kSlope[n] * factor);
  return d;
}

}  // namespace cuflash
