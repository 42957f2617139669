// Files and directories that no other user can have written, because code is run from them.
#pragma once

#include <string>

#include "support/file.h"

namespace cuflash {

// Opens the directory, and creates it (0700) if it does not exist. Returns no file, with the reason in `problem`, if it
// belongs to another user or others may write to it.
File open_private_directory(std::string path, std::string& problem);

// Opens a file of such a directory for reading. Returns no file, with the reason in `problem`, if it cannot be opened
// or another user could have written it.
File open_private_file(int directory, const std::string& name, std::string& problem);

// Opens a file that the user names for reading; it may belong to root, for all users of a machine, and links are
// followed. Returns no file, with the reason in `problem`, if another user could have written it. Its directory may
// belong to anyone: a file that another user puts there belongs to that user, and is refused.
File open_trusted_file(const std::string& path, std::string& problem);

// Replaces the content of the file atomically: readers never see a part of it. false, with errno, if it cannot be
// written; the file is unchanged then.
bool replace_file(int directory, const std::string& name, const std::string& bytes);

}  // namespace cuflash
