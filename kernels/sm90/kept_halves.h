// Decisions of dropout, two at a time, as masks of the halves of a word.
#pragma once

#include "philox.h"
#include "ptx/math.h"

namespace cuflash {

// The selector of __byte_perm that takes the dropout windows of two columns from the words of a group's row.
CUFLASH_SHARED_FUNCTION constexpr unsigned window_bytes(unsigned first, unsigned second) {
  return (4 + first) | first << 4 | (4 + second) << 8 | second << 12;
}

// Sets all bits of each half whose column is kept; with rule.inverted, of each half whose column is dropped.
__device__ __forceinline__ unsigned compared_halves(const DropoutGroup& group, const DropoutRule& rule, int row,
                                                    unsigned bytes) {
  return not_less_mask_bf16(__byte_perm(group.word[row], group.low[row], bytes), rule.bf16x2);
}
__device__ __forceinline__ unsigned kept_halves(const DropoutGroup& group, const DropoutRule& rule, int row,
                                                unsigned bytes) {
  return compared_halves(group, rule, row, bytes) ^ rule.inverted;
}

}  // namespace cuflash
