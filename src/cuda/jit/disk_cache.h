// Compiled kernels in a private directory of the user, shared by processes. No failure is fatal: an unreadable file
// counts as a miss, a file that cannot be written is not kept, and state() says why.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/archive.h"

namespace cuflash::cuda {

class DiskCache {
 public:
  // directory: created if it does not exist; "": no cache.
  explicit DiskCache(std::string directory);

  const std::string& directory() const { return path_; }
  bool usable() const { return static_cast<bool>(directory_); }
  // The last problem, or "".
  std::string state() const;

  // Removes a file that is damaged or that another user could have changed.
  std::optional<std::string> load(const Digest& key);
  void store(const ArchiveEntry& entry);

  // Held while a kernel is compiled, so that other processes wait for it instead of compiling it, too. If the lock
  // cannot be taken, or another process holds it for too long, work continues without it, which only costs time.
  class Lock {
   public:
    Lock(const DiskCache& cache, const Digest& key);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int directory_;
    std::string name_;
    File file_;
  };

  struct Listed {
    std::string file, kernel;  // kernel: its name, or "damaged: ..."
    uint64_t bytes = 0;
  };
  std::vector<Listed> list() const;
  // Removes every file of the cache, and no other file. Returns the number of kernels.
  size_t clear();

 private:
  void note(std::string problem);
  std::vector<std::string> files() const;

  std::string path_;
  File directory_;
  mutable std::mutex mutex_;
  std::string state_;
};

}  // namespace cuflash::cuda
