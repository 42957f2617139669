#include "backend/check_lengths.h"

#include "cuda/launch/lengths.h"
#include "problem/describe.h"
#include "problem/describe_cache.h"

namespace cuflash {

template <class Tensors>
static void check(const cuflash_attention& attention, const Tensors& tensors, const Execution& e, Memory memory) {
  if (!e.check_lengths || !memory.on_cuda()) return;
  const cuda::HostLengths copy(attention, memory, e.stream);
  Snapshot copies;
  describe(copy.attention(), tensors, Memory{}, copies);
}

void check_lengths(const cuflash_attention& attention, const cuflash_forward_outputs& outputs,
                   const Execution& execution, Memory memory) {
  check(attention, outputs, execution, memory);
}
void check_lengths(const cuflash_attention& attention, const cuflash_backward_tensors& tensors,
                   const Execution& execution, Memory memory) {
  check(attention, tensors, execution, memory);
}

void check_lengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& e,
                   Memory memory) {
  if (!e.check_lengths || !memory.on_cuda()) return;
  const cuda::HostLengths copy(attention, cache, memory, e.stream);
  Snapshot copies;
  describe(copy.attention(), copy.cache(), Memory{}, copies);
}

}  // namespace cuflash
