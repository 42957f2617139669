// Files and directories that other users cannot have written: code is run from them.
#pragma once

#include <string>

#include "support/file.h"

namespace cuflash {

// Makes the directory (0700) where it does not exist and opens it. No file, and the reason in `problem`, where it is not
// ours or others may write to it.
File open_private_directory(std::string path, std::string& problem);

// A file of such a directory, opened for reading. No file, and the reason in `problem`, where it cannot be opened or
// another user could have written it.
File open_private_file(int directory, const std::string& name, std::string& problem);

// A file that the user names, opened for reading; it may be root's, for all users of a machine, and links are followed.
// No file, and the reason in `problem`, where another user could have written it. Its directory may be anyone's: what
// another user puts there in its place belongs to that user, and is refused.
File open_trusted_file(const std::string& path, std::string& problem);

// The file has this content afterwards, or is what it was: readers never see a part of it. false, with errno, where it
// could not be written.
bool replace_file(int directory, const std::string& name, const std::string& bytes);

}  // namespace cuflash
