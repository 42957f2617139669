// The tile of a problem, including what was tuned on this machine.
#pragma once

#include <string>

#include "cpu/plan/types.h"

namespace cuflash::cpu {

// The name under which tuned choices are stored: processor and kernels in use, "Intel(R) Xeon(R) ..., avx512".
std::string tuned_name();

// Null if nothing was tuned for this problem.
const tuned::Choice* tuned_choice(tuned::Direction direction, const Problem& problem);

inline TileShape tile_for(const ForwardProblem& p, int64_t threads) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) {
    const Kernels<T, E>& k = kernels_of<T, E>(p);
    return forward_tile(p, k.lanes, k.step, k.tile_q, threads, tuned_choice(tuned::Direction::forward, p));
  });
}
inline TileShape tile_for(const BackwardProblem& p, int64_t) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) {
    const Kernels<T, E>& k = kernels_of<T, E>(p);
    return backward_tile(p, k.lanes, k.step, tuned_choice(tuned::Direction::backward, p));
  });
}

}  // namespace cuflash::cpu
