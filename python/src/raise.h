// Failures of the library as Python exceptions.
#pragma once

#include <cuflash/cuflash.h>

#include <string_view>

namespace cuflash::python {

// Whose names of arguments a message has: in a call over a cache, k and v are what is appended.
enum class Words { attention, cache };

struct Wording {
  std::string_view layout;  // with "bshd" a message says in which order it counts dimensions
  Words words = Words::attention;
};

// Raises the exception of this status with the message in Python's words.
[[noreturn]] void raise_error(cuflash_status status, std::string_view message, Wording wording);

// Raises unless status is CUFLASH_OK.
void check(cuflash_status status, Wording wording);

}  // namespace cuflash::python
