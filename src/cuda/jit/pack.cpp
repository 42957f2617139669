#include "cuda/jit/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "error.h"
#include "support/temporary_file.h"

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

[[noreturn]] void cannot_write(const std::string& path, const TemporaryFile& file) {
  reject("output: ", path, " cannot be written: ", std::strerror(file.error()));
}

}  // namespace

size_t write_pack(const std::vector<KernelKey>& kernels, Binaries& binaries, int threads, const std::string& path,
                  const PackProgress& progress) {
  // The file is opened first, so that a path that cannot be written fails before minutes of compiling. Only the owner
  // may write to a pack: code is run from it, and many users' files are writable by their group.
  TemporaryFile file(path, 0644);
  if (!file) cannot_write(path, file);
  const std::string bytes = archive_bytes(compile_all(kernels, binaries, threads, progress));
  if (!file.write(bytes) || !file.sync() || !file.put_in_place()) cannot_write(path, file);
  return bytes.size();
}

}  // namespace cuflash::cuda
