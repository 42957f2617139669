// The spec's comparison ("How to compare"). A bound on the largest error alone lets real bugs pass: an output scaled by
// 1.004, a dQ off by 1%, an LSE shifted by 1. So a result must also have NaN and Inf where the oracle has them, an RMS error
// like that of the naive evaluation in the same type, a slope of 1 against the oracle, and the same direction.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <vector>

namespace cuflash::check {

enum class Quantity { output, lse, gradient };

// "" if actual agrees with expected (the float64 oracle), otherwise one line that names the quantity, the violated rule and
// the worst element. naive is the same-type evaluation that sets the allowed error; type is the type of the inputs, and
// stored the type that actual was rounded to. noise is the effect of rounding alone on each element (reference/noise.h);
// without it, small problems and hostile inputs would depend on the luck of the naive evaluation. correlated: the inputs
// make many elements have the same error, so that the slope is not a mean over random errors.
std::string disagreement(const std::string& name, Quantity quantity, DType type, DType stored,
                         const std::vector<double>& actual, const std::vector<double>& expected,
                         const std::vector<double>& naive, const std::vector<double>& noise = {},
                         bool correlated = false);

}  // namespace cuflash::check
