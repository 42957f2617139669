// Bounds the error that rounding alone may cause in each element of a result: a first-order error analysis of the
// formulas, in float64.
//
// The naive evaluation measures the same thing, but it is a single sample: on a small problem its error is sometimes almost 0
// by luck, and a correct backend would be called wrong. This bound does not depend on luck. It grows if scores are large or
// cancel (|s| = 1e4 in f32 moves a probability by 1e-3); for ordinary inputs it is a few units of roundoff.
#pragma once

#include <cuflash/flash_attention.h>

#include "oracle.h"

namespace cuflash::reference {

// The fields hold absolute errors, shaped like the oracle's results. The model assumes what the spec allows: arithmetic in
// f32 (f64 for f64), with P, dS and O rounded to the type of q before they enter a product. It excludes the final rounding
// to the stored type. Inputs that are not finite make errors that are not finite.
Forward forward_noise(const Attention& attention);
Backward backward_noise(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                        Forward* forward = nullptr);

}  // namespace cuflash::reference
