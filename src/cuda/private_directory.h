// A directory that only its owner can write to.
#pragma once

#include <string>

#include "support/file.h"

namespace cuflash::cuda {

// Makes the directory (0700) where it does not exist and opens it. No file, and the reason in `problem`, where it is not
// ours or others may write to it: code is run from it.
File open_private_directory(std::string path, std::string& problem);

// A file of such a directory, opened for reading. No file, and the reason in `problem`, where it cannot be opened or
// another user could have written it.
File open_private_file(int directory, const std::string& name, std::string& problem);
// The file has this content afterwards, or is what it was: readers never see a part of it. false, with errno, where it
// could not be written.
bool replace_file(int directory, const std::string& name, const std::string& bytes);

}  // namespace cuflash::cuda
