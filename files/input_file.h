// A regular file that is read from its beginning, and that nobody reads beyond the size it had when it was opened.
#pragma once

#include <cstdint>
#include <string>

#include "files/error.h"
#include "support/file.h"
#include "support/text.h"

namespace cuflash::files {

// Everything it throws is a FileError without the name of the file.
class InputFile {
 public:
  explicit InputFile(const std::string& path);

  int64_t left() const { return size_ - position_; }
  // To be asked before memory is taken for what comes next.
  void require_left(int64_t count, const std::string& what) const;
  void read(void* to, int64_t count);
  // The same from `ahead` bytes after the position, which stays.
  void read_at(int64_t ahead, void* to, int64_t count) const;

 private:
  File file_;
  int64_t size_ = 0, position_ = 0;
};

// Runs `read` and puts the name of the file in front of what goes wrong in it.
template <class Read>
auto naming_file(const std::string& path, Read read) {
  try {
    return read();
  } catch (const FileError& error) {
    throw FileError(join("cannot read ", in_quotes(path), ": ", error.what()));
  }
}

}  // namespace cuflash::files
