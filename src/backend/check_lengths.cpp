#include "backend/check_lengths.h"

#include "cuda/launch/lengths.h"
#include "problem/describe.h"
#include "problem/describe_cache.h"

namespace cuflash {

template <class Tensors>
static void check(const cuflash_attention& attention, const Tensors& tensors, const Execution& e, Place place) {
  if (!e.check_lengths || !place.on_cuda()) return;
  const cuda::HostLengths copy(attention, place, e.stream);
  Snapshot copies;
  describe(copy.attention(), tensors, Place{}, copies);
}

void check_lengths(const cuflash_attention& attention, const cuflash_forward_outputs& outputs,
                   const Execution& execution, Place place) {
  check(attention, outputs, execution, place);
}
void check_lengths(const cuflash_attention& attention, const cuflash_backward_tensors& tensors,
                   const Execution& execution, Place place) {
  check(attention, tensors, execution, place);
}

void check_lengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& e,
                   Place place) {
  if (!e.check_lengths || !place.on_cuda()) return;
  const cuda::HostLengths copy(attention, cache, place, e.stream);
  Snapshot copies;
  describe(copy.attention(), copy.cache(), Place{}, copies);
}

}  // namespace cuflash
