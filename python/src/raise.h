// Failures of the library as Python exceptions.
#pragma once

#include <cuflash/cuflash.h>

#include <string_view>

namespace cuflash::python {

// Raises the exception of this status with the message in Python's words.
[[noreturn]] void raise_error(cuflash_status status, std::string_view message, std::string_view layout);

// Raises unless status is CUFLASH_OK. With layout "bshd" the message says in which order it counts dimensions.
void check(cuflash_status status, std::string_view layout);

}  // namespace cuflash::python
