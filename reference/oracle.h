// The contract in float64: attention and its gradients as numbered passes, without tricks, tiles or code of the backends
// (except the 16-bit conversions and Philox, which have their own tests). Everything else is compared with this.
#pragma once

#include <cuflash/flash_attention.h>

#include <vector>

namespace cuflash::reference {

// Arrays are contiguous in the logical shape of their tensor: o [B, Hq, Sq, Dv] or packed [Tq, Hq, Dv],
// lse [B, Hq, Sq] or packed [Hq, Tq]. Packed rows beyond cu_seqlens[B] do not exist; they hold 0 here.
struct Forward {
  std::vector<double> o, lse;
};

// dbias is [B or 1, Hq or 1, Sq or 1, Sk]: 1 if bias has extent 1 or stride 0. Empty without bias; dsink likewise.
struct Backward {
  std::vector<double> dq, dk, dv, dbias, dsink;
};

// The arguments must be valid (see src/problem): these functions check nothing.
Forward oracle_forward(const Attention& attention);

// dlse may be absent. O and LSE are recomputed in float64, not taken from a forward call; forward receives them, if given.
Backward oracle_backward(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                         Forward* forward = nullptr);

}  // namespace cuflash::reference
