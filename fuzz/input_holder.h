// Files that hold one input after the other. They stay open, since closing would make some file systems write to disk.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "support/file.h"

namespace cuflash::fuzz {

class InputHolder {
 public:
  explicit InputHolder(int descriptor) : file_(descriptor) {
    if (!file_) throw std::runtime_error("a file for inputs could not be opened");
  }

  void hold(const std::string& content) const {
    const auto size = static_cast<ssize_t>(content.size());
    if (::pwrite(file_.get(), content.data(), content.size(), 0) != size || ::ftruncate(file_.get(), size) != 0) {
      throw std::runtime_error("an input could not be written to a file");
    }
  }

 protected:
  File file_;
};

// Holds an input in memory under a path, so that the readers are fuzzed the way users call them.
class MemoryFile : public InputHolder {
 public:
  MemoryFile() : InputHolder(::memfd_create("cuflash_fuzz", MFD_CLOEXEC)) {}

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }
};

// Holds an input on disk, where it survives the process.
class DiskFile : public InputHolder {
 public:
  explicit DiskFile(const std::string& path)
      : InputHolder(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {}
};

}  // namespace cuflash::fuzz
