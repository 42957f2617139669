// Calls on PyTorch tensors that also allocate their results: one call from Python instead of a dozen.
#pragma once

#include <nanobind/nanobind.h>

namespace cuflash::python {

void bind_torch_calls(nanobind::module_& module);

}  // namespace cuflash::python
