#include "cuda/file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cuflash::cuda {

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
int File::release() { return std::exchange(descriptor_, -1); }

bool write_all(int descriptor, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return ::fsync(descriptor) == 0;
}

}  // namespace cuflash::cuda
