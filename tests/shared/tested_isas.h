// The instruction sets that tests of CPU kernels go through one by one.
#pragma once

#include <vector>

#include "cpu/isa/kernels.h"
#include "tests/shared/support.h"

namespace cuflash::test {

// All instruction sets of the processor, but only the best one under a sanitizer: threads interact in the same way on
// all of them, tensors have guard pages in every build, and isa_test tries all sets under AddressSanitizer.
inline std::vector<const char*> tested_isas() {
  const std::vector<const char*> names = cpu::isa_names();
  if (kSanitized) return {names.back()};
  return names;
}

}  // namespace cuflash::test
