// The only error that files/ throws.
#pragma once

#include <stdexcept>

namespace cuflash::files {

// A file that cannot be read or written, or whose content cannot be used: one sentence that can be printed to a terminal.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cuflash::files
