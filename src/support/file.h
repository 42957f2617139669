// A file descriptor that its owner closes.
#pragma once

#include <unistd.h>

#include <utility>

namespace cuflash {

class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File() { close(); }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }
  // false, with errno, if closing fails: a file system may report an error this late.
  bool close() { return descriptor_ < 0 || ::close(release()) == 0; }

 private:
  int descriptor_;
};

}  // namespace cuflash
