// Decisions of dropout, two at a time, as masks of the halves of a word.
#pragma once

#include "philox.h"
#include "ptx/math.h"

namespace cuflash {

// Of __byte_perm: the windows of two columns of a group's row, from its words.
CUFLASH_SHARED_FUNCTION constexpr unsigned window_bytes(unsigned first, unsigned second) {
  return (4 + first) | first << 4 | (4 + second) << 8 | second << 12;
}

// All bits of each half whose column is kept; with rule.inverted, of each whose column is not.
__device__ __forceinline__ unsigned compared_halves(const DropoutGroup& group, const DropoutRule& rule, int row,
                                                    unsigned bytes) {
  return not_less_mask_bf16(__byte_perm(group.word[row], group.low[row], bytes), rule.bf16x2);
}
__device__ __forceinline__ unsigned kept_halves(const DropoutGroup& group, const DropoutRule& rule, int row,
                                                unsigned bytes) {
  return compared_halves(group, rule, row, bytes) ^ rule.inverted;
}

}  // namespace cuflash
