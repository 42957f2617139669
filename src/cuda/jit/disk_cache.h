// Compiled kernels in a directory of the user's own, shared by processes. Nothing here is fatal: what cannot be read is
// a miss, what cannot be written is not kept, and state() says why.
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
  // directory: made where it does not exist; "": no cache.
  explicit DiskCache(std::string directory);

  const std::string& directory() const { return path_; }
  bool usable() const { return static_cast<bool>(directory_); }
  // "" while all is well, or the last reason why it is not.
  std::string state() const;

  // A damaged file, or one that another user could have changed, is removed.
  std::optional<std::string> load(const Digest& key);
  void store(const ArchiveEntry& entry);

  // Held while a kernel is compiled, so that other processes wait for it in place of compiling it too. Where it cannot
  // be had, or another process holds it for too long, work goes on without: that costs time, never a wrong result.
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
  // Removes every file of the cache, and no other. Returns how many kernels there were.
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
