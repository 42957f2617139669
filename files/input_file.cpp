#include "files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

namespace cuflash::files {

// O_NONBLOCK: otherwise opening a pipe without a writer would block forever.
InputFile::InputFile(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_) throw FileError(system_message(errno));
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw FileError(system_message(errno));
  if (S_ISDIR(status.st_mode)) throw FileError("it is a directory; name a file in it");
  if (!S_ISREG(status.st_mode)) throw FileError("it is not a regular file; a pipe must be saved to a file first");
  size_ = status.st_size;
}

void InputFile::require_left(int64_t count, const std::string& what) const {
  if (count > left())
    throw FileError(join("it is cut off: ", what, " needs ", count, " bytes, but only ", left(), " are left"));
}

void InputFile::read(void* to, int64_t count) {
  read_at(0, to, count);
  position_ += count;
}

void InputFile::read_at(int64_t ahead, void* to, int64_t count) const {
  auto* next = static_cast<char*>(to);
  int64_t from = position_ + ahead;
  while (count > 0) {
    const ssize_t got = ::pread(file_.get(), next, static_cast<size_t>(count), from);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(system_message(errno));
    if (got == 0) throw FileError("it became shorter while it was being read");
    next += got;
    from += got;
    count -= got;
  }
}

}  // namespace cuflash::files
