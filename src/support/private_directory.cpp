#include "support/private_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.h"
#include "support/temporary_file.h"

namespace cuflash {

File open_private_directory(std::string path, std::string& problem) {
  // A slash at the end would follow a link in spite of O_NOFOLLOW.
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  ::mkdir(path.c_str(), 0700);  // success is checked below
  File directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) {
    const int error = errno;
    struct stat status {};
    const bool link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    problem = link ? path + " is a symbolic link; name the directory itself"
                   : join(path, " cannot be made or opened: ", std::strerror(error));
    return File();
  }
  // Checks the open directory, not its name, which could refer to another one by now.
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) {
    problem = join(path, " cannot be examined: ", std::strerror(errno));
  } else if (status.st_uid != ::geteuid()) {
    problem = join(path, " belongs to user ", status.st_uid, ", not to ", ::geteuid());
  } else if (status.st_mode & (S_IWGRP | S_IWOTH)) {
    problem = join(path, " can be written by others; chmod go-w it");
  } else {
    return directory;
  }
  return File();
}

File open_private_file(int directory, const std::string& name, std::string& problem) {
  File file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) problem = join("cannot be opened: ", std::strerror(errno));
  else if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)))
    problem = "could have been written by another user";
  else return file;
  return File();
}

// Checks the open file, not its name, which could refer to another one by now.
File open_trusted_file(const std::string& path, std::string& problem) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) problem = join("cannot be opened: ", std::strerror(errno));
  else if (status.st_uid != ::geteuid() && status.st_uid != 0)
    problem = join("belongs to user ", status.st_uid, ", and code is run from it; it must belong to user ", ::geteuid(),
                   " or to root: copy it, or chown it");
  else if (status.st_mode & (S_IWGRP | S_IWOTH))
    problem = "can be written by others, and code is run from it; chmod go-w it";
  else return file;
  return File();
}

bool replace_file(int directory, const std::string& name, const std::string& bytes) {
  TemporaryFile file(directory, name, 0600);
  if (file && file.write(bytes) && file.sync() && file.put_in_place()) return true;
  errno = file.error();
  return false;
}

}  // namespace cuflash
