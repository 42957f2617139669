// The instruction sets that tests of CPU kernels go through one by one.
#pragma once

#include <vector>

#include "cpu/isa/kernels.h"
#include "tests/shared/support.h"

namespace cuflash::test {

// All that the processor has. Under a sanitizer only the best one: threads interact in the same way on all of them, tensors have guard pages in every build, and isa_test goes through all sets under AddressSanitizer.
inline std::vector<const char*> tested_isas() {
  const std::vector<const char*> names = cpu::isa_names();
  if (kSanitized) return {names.back()};
  return names;
}

}  // namespace cuflash::test
