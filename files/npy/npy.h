// NumPy's .npy files, versions 1 to 3. The reader trusts nothing in them.
#pragma once

#include <string>

#include "files/array.h"

namespace cuflash::files {

// Throws FileError with a sentence that names the file and what is wrong with it. Allocates memory only after the size in the
// header was found to match the size of the file.
Array read_npy(const std::string& path);

// The bytes of the file before the array's. Throws FileError for bf16, which NumPy does not have.
std::string npy_start(const Array& array);

}  // namespace cuflash::files
