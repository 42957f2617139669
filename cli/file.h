// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

namespace cuflash::cli {

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(); }

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  bool close() { return !is_open() || ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

inline std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace cuflash::cli
