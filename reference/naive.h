// Textbook attention in the caller's type: S = Q K^T, P = softmax(S), O = P V, with the whole
// Sq x Sk matrices in memory. The baseline for speed, for memory, and for the inherent error of a type.
#pragma once

#include <cuflash/flash_attention.h>

#include "oracle.h"

namespace cuflash::reference {

// Computes in f32 (f64 for f64 inputs) and rounds every matrix that is written to memory to the type of q: scores,
// probabilities, output; in backward also dP, dS and the gradients. Shapes, and the outputs of backward, as in oracle.h.
Forward naive_forward(const Attention& attention);
Backward naive_backward(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                        Forward* forward = nullptr);

// Bytes of the Sq x Sk matrices that such a call keeps, for reports.
size_t naive_forward_bytes(const Attention& attention);
size_t naive_backward_bytes(const Attention& attention);

}  // namespace cuflash::reference
