#include "cuda/pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "error.h"

namespace cuflash::cuda {
namespace {

std::vector<ArchiveEntry> compile_all(const std::vector<KernelKey>& kernels, Binaries& binaries, int threads,
                                      const PackProgress& progress) {
  std::vector<ArchiveEntry> entries(kernels.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t n; (n = next++) < kernels.size();) {
      try {
        const Program program = program_of(kernels[n]);
        entries[n] = {pack_key(program), program.name, binaries.get(program).cubin};
        const std::lock_guard lock(mutex);
        progress(++done, kernels.size(), program.name);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = kernels.size();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int n = 1; n < threads; ++n) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return entries;
}

[[noreturn]] void cannot_write(const std::string& path) { reject("output: ", path, ": ", std::strerror(errno)); }

}  // namespace

size_t write_pack(const std::vector<KernelKey>& kernels, Binaries& binaries, int threads, const std::string& path,
                  const PackProgress& progress) {
  // A path that cannot be written is found before minutes of compiling.
  const std::string temporary = join(path, ".", ::getpid(), ".tmp");
  const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file) cannot_write(temporary);
  try {
    const std::string bytes = archive_bytes(compile_all(kernels, binaries, threads, progress));
    if (!write_all(file.get(), bytes) || ::rename(temporary.c_str(), path.c_str()) != 0) cannot_write(path);
    return bytes.size();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace cuflash::cuda
