// Failures of the library as Python exceptions.
#pragma once

#include <cuflash/cuflash.h>

#include <string_view>

#include "arrays.h"

namespace cuflash::python {

// Whose names of arguments a message has: in a call over a cache, k and v are what is appended.
enum class Words { attention, cache };

struct Wording {
  std::string_view layout;  // the caller's order of dimensions, in which a message has them
  Words words = Words::attention;
  Packing packing = Packing::none;  // of q, k and v: a message then says of which array they are a part
};

// Raises the exception of this status with the message in Python's words, and in the order of the caller's dimensions.
[[noreturn]] void raise_error(cuflash_status status, std::string_view message, Wording wording);

// Raises unless status is CUFLASH_OK.
void check(cuflash_status status, Wording wording);

}  // namespace cuflash::python
