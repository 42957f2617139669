// The elements of an array as one of the library's types.
#pragma once

#include <cuflash/flash_attention.h>

#include "files/array.h"

namespace cuflash::files {

// Rounds each element once. The result is contiguous and in this machine's byte order.
std::vector<std::byte> convert(const Array& array, DType type);

// Integers keep their value; a truth value is false for 0. Both throw FileError, without the name of the file, for an
// element type or a value that does not fit.
std::vector<int32_t> to_int32(const Array& array);
std::vector<std::byte> to_bool(const Array& array);

}  // namespace cuflash::files
