// NumPy's .npy files, versions 1 to 3, read as if every one of them came from an enemy.
#pragma once

#include <string>

#include "files/array.h"

namespace cuflash::files {

// Throws FileError with a sentence that names the file and what is wrong with it. Memory is taken only after the size
// that the header claims was found to be the size that the file has.
Array read_npy(const std::string& path);

// What stands in front of the array's bytes in its file. Throws FileError for bf16, which NumPy cannot say.
std::string npy_start(const Array& array);

}  // namespace cuflash::files
