// The handlers that XLA calls, and what Python needs to register them.
#pragma once

#include <nanobind/nanobind.h>

namespace cuflash::python {

// Adds xla_handlers() and xla_check() to the module.
void bind_xla_ffi(nanobind::module_& module);

}  // namespace cuflash::python
