// A lane's share of a 16x8 tile of sums of mma.sync and wgmma, in every type: with r = lane / 4 and c = lane % 4 a lane
// holds row r, columns 2c and 2c + 1 (x[0], x[1]) and row r + 8, the same columns (x[2], x[3]).
#pragma once

namespace cuflash {

template <class Real>
struct Accumulator {
  Real x[4];

  __device__ __forceinline__ void operator+=(const Accumulator& other) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] += other.x[n];
  }
};

}  // namespace cuflash
