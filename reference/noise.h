// How far rounding alone may move each element of a result: a first-order error analysis of the formulas, in float64.
//
// The naive evaluation measures the same thing, but it is one draw: on a small problem its error is now and then
// almost 0 by luck, and a correct backend would be called wrong. This bound has no luck in it. Where scores are large
// or cancel (|s| = 1e4 in f32 moves a probability by 1e-3), it grows; for ordinary inputs it is a few units roundoff.
#pragma once

#include <cuflash/flash_attention.h>

#include "oracle.h"

namespace cuflash::reference {

// The fields hold absolute errors, shaped as the oracle's results. Assumed is what the spec allows: arithmetic in f32
// (f64 for f64), with P, dS and O passing through the type of q on their way into a product. Not included is the last
// rounding, to the type the result is stored in. Inputs that are not finite make errors that are not finite.
Forward forward_noise(const Attention& attention);
Backward backward_noise(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse);

}  // namespace cuflash::reference
