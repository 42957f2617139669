// Calls on PyTorch tensors that allocate their results too: one call from Python in place of a dozen.
#pragma once

#include <nanobind/nanobind.h>

namespace cuflash::python {

void bind_torch_calls(nanobind::module_& module);

}  // namespace cuflash::python
