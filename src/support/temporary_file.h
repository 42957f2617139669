// Files that appear complete or not at all: each is written under a temporary name in the same directory and then
// renamed.
//
// Temporary names are random, and only this code creates them. A name that repeats, such as one that contains the
// process ID, would stay taken forever after a process was killed: in a container the next process has the same ID.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "support/file.h"

namespace cuflash {

class TemporaryFile {
 public:
  // Creates a temporary file for the file `name` of an open directory, or for a path. If that fails, the object is
  // false and error() has the reason. Removes temporary files that other processes left there more than a day ago.
  TemporaryFile(int directory, std::string name, mode_t mode);
  TemporaryFile(const std::string& path, mode_t mode);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();  // removes the file, unless it was put in place

  explicit operator bool() const { return made_; }
  const std::string& temporary_name() const { return temporary_; }  // within the directory
  int error() const { return error_; }                              // errno of what failed last

  // These return false, and set error(), on failure.
  bool write(std::string_view bytes);
  bool sync();   // waits until everything is on the disk: a full disk or a quota shows here at the latest
  bool close();  // a network file system may report only now that it is full
  bool put_in_place();

 private:
  void make(mode_t mode);
  bool note(bool worked);

  File directory_, file_;
  std::string name_, temporary_;
  bool made_ = false;
  int error_ = 0;
  int slot_ = -1;  // index in the list that remove_temporary_files() reads
};

bool is_temporary_name(std::string_view name);

// Removes every temporary file of this process that is not in place yet. For the handler of a signal that ends the
// process: it is async-signal-safe. The library itself installs no handler.
void remove_temporary_files() noexcept;

}  // namespace cuflash
