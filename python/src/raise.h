// Failures of the library as Python exceptions.
#pragma once

#include <cuflash/cuflash.h>

#include <string_view>

#include "arrays.h"

namespace cuflash::python {

// The argument names that a message uses: in a call over a cache, k and v are the rows to append.
enum class Words { attention, cache };

struct Wording {
  std::string_view layout;  // the caller's order of dimensions, which the message uses
  Words words = Words::attention;
  Packing packing = Packing::none;  // packing of q, k and v: a message names the array that contains them
};

// Raises the exception of this status; the message uses Python's names and the caller's order of dimensions.
[[noreturn]] void raise_error(cuflash_status status, std::string_view message, Wording wording);

// Raises unless status is CUFLASH_OK.
void check(cuflash_status status, Wording wording);

}  // namespace cuflash::python
