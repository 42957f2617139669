// A directory that only its owner can write to.
#pragma once

#include <string>

#include "cuda/file.h"

namespace cuflash::cuda {

// Makes the directory (0700) where it does not exist and opens it. No file, and the reason in `problem`, where it is not
// ours or others may write to it: code is run from it.
File open_private_directory(std::string path, std::string& problem);

}  // namespace cuflash::cuda
