// The spec's comparison ("How to compare"). The largest error alone lets real bugs pass: an output scaled by 1.004, a
// dQ off by 1%, a LSE shifted by 1. So a result must also have NaN and Inf where the oracle has them, an RMS error like
// that of the naive evaluation in the same type, a slope of 1 against the oracle, and its direction.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <vector>

namespace cuflash::check {

enum class Quantity { output, lse, gradient };

// "" where actual agrees with expected (float64 oracle), otherwise one line that names the quantity, the rule that
// broke and the worst element. naive is the same-type evaluation that sets the allowed error; type is the inputs' type
// and stored the type actual was rounded to. noise is what rounding alone may do to each element (reference/noise.h):
// without it, small problems and hostile inputs depend on the luck of the naive evaluation. correlated: inputs such that
// many elements have the same error, so that the slope is no mean over random ones.
std::string disagreement(const std::string& name, Quantity quantity, DType type, DType stored,
                         const std::vector<double>& actual, const std::vector<double>& expected,
                         const std::vector<double>& naive, const std::vector<double>& noise = {},
                         bool correlated = false);

}  // namespace cuflash::check
