// The page pool of a KV cache.
#pragma once

#include <nanobind/nanobind.h>

namespace cuflash::python {

// Adds the class PagePool to the module.
void bind_page_pool(nanobind::module_& module);

}  // namespace cuflash::python
