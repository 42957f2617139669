// The tile of a problem on this machine, with what was measured here.
#pragma once

#include <string>

#include "cpu/types.h"

namespace cuflash::cpu {

// By which tuned choices know this processor and the kernels in use: "Intel(R) Xeon(R) ..., avx512".
std::string tuned_name();

// Null where there is none.
const tuned::Choice* tuned_choice(tuned::Direction direction, const Problem& problem);

inline TileShape tile_for(const ForwardProblem& p) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) {
    const Kernels<T, E>& k = kernels<T, E>();
    return forward_tile(p, k.lanes, k.step, tuned_choice(tuned::Direction::forward, p));
  });
}
inline TileShape tile_for(const BackwardProblem& p) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) {
    const Kernels<T, E>& k = kernels<T, E>();
    return backward_tile(p, k.lanes, k.step, tuned_choice(tuned::Direction::backward, p));
  });
}

}  // namespace cuflash::cpu
