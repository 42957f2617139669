// A regular file, read from its beginning and never beyond the size it had when it was opened.
#pragma once

#include <cstdint>
#include <string>

#include "files/error.h"
#include "support/file.h"
#include "support/text.h"

namespace cuflash::files {

// Every FileError it throws lacks the name of the file; naming_file adds it.
class InputFile {
 public:
  explicit InputFile(const std::string& path);

  int64_t left() const { return size_ - position_; }
  // Call before allocating memory for what is read next.
  void require_left(int64_t count, const std::string& what) const;
  void read(void* to, int64_t count);
  // Reads from `ahead` bytes after the position, without moving it.
  void read_at(int64_t ahead, void* to, int64_t count) const;

 private:
  File file_;
  int64_t size_ = 0, position_ = 0;
};

// Runs `read` and prefixes its errors with the name of the file.
template <class Read>
auto naming_file(const std::string& path, Read read) {
  try {
    return read();
  } catch (const FileError& error) {
    throw FileError(join("cannot read ", in_quotes(path), ": ", error.what()));
  }
}

}  // namespace cuflash::files
