// A file of the operating system.
#pragma once

#include <string>

namespace cuflash::cuda {

// A file descriptor that is closed with its owner.
class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) noexcept;
  ~File();
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release();

 private:
  int descriptor_;
};

// Writes everything and waits until it is on the disk: a full disk or a quota is seen here at the latest. false, with
// errno, where it fails.
bool write_all(int descriptor, const std::string& bytes);

}  // namespace cuflash::cuda
