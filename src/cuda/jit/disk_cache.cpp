#include "cuda/jit/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "error.h"
#include "support/private_directory.h"
#include "support/temporary_file.h"
#include "tuned/table.h"

namespace cuflash::cuda {
namespace {

constexpr const char *kKernelSuffix = ".kernel", *kLockSuffix = ".lock";
constexpr const char* kOldTemporarySuffix =
    ".tmp";  // suffix in earlier versions, whose temporary names began with the key
constexpr auto kLockPatience = std::chrono::seconds(120);  // many times as long as the slowest kernel takes
constexpr auto kLockPoll = std::chrono::milliseconds(5);

// Names of kernel and lock files begin with a key. The cache touches no file that it did not create.
bool is_ours(const std::string& name) {
  constexpr size_t kKeyLength = 2 * sizeof(Digest);
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name == tuned::kTunedFile || is_temporary_name(name)) return true;
  return name.size() > kKeyLength && std::all_of(name.begin(), name.begin() + kKeyLength, is_hex) &&
         (name.ends_with(kKernelSuffix) || name.ends_with(kLockSuffix) || name.ends_with(kOldTemporarySuffix));
}

Archive open_entry(int directory, const std::string& name) {
  std::string problem;
  File file = open_private_file(directory, name, problem);
  if (!file) throw ArchiveError(problem);
  return Archive(std::move(file));
}

// Whether the open file still has that name: the lock of a removed file excludes no other process.
bool is_named(int file, int directory, const std::string& name) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

DiskCache::DiskCache(std::string directory) : path_(std::move(directory)) {
  if (path_.empty()) state_ = "neither CUFLASH_CACHE_DIR nor XDG_CACHE_HOME nor HOME names a directory";
  else directory_ = open_private_directory(path_, state_);
}

std::string DiskCache::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void DiskCache::note(std::string problem) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(problem);
}

std::optional<std::string> DiskCache::load(const Digest& key) {
  if (!directory_) return std::nullopt;
  const std::string name = hex(key) + kKernelSuffix;
  if (::faccessat(directory_.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  try {
    if (std::optional<ArchiveEntry> entry = open_entry(directory_.get(), name).find(key)) return entry->cubin;
    throw ArchiveError("holds another kernel");
  } catch (const ArchiveError& error) {
    note(join(path_, "/", name, " ", error.what(), "; it was removed"));
    ::unlinkat(directory_.get(), name.c_str(), 0);
    return std::nullopt;
  }
}

void DiskCache::store(const ArchiveEntry& entry) {
  if (!directory_) return;
  const std::string name = hex(entry.key) + kKernelSuffix;
  if (!replace_file(directory_.get(), name, archive_bytes({entry})))
    note(join(path_, "/", name, " cannot be written: ", std::strerror(errno)));
}

DiskCache::Lock::Lock(const DiskCache& cache, const Digest& key)
    : directory_(cache.directory_.get()), name_(hex(key) + kLockSuffix) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  while (directory_ >= 0 && std::chrono::steady_clock::now() < end) {
    file_ = File(::openat(directory_, name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_) return;
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_named(file_.get(), directory_, name_)) return;
    } else if (errno != EWOULDBLOCK && errno != EINTR) {
      break;
    } else {
      std::this_thread::sleep_for(kLockPoll);
    }
  }
  file_ = File();
}

// The lock file is removed while it is locked, so that none accumulate.
DiskCache::Lock::~Lock() {
  if (file_) ::unlinkat(directory_, name_.c_str(), 0);
}

std::vector<std::string> DiskCache::files() const {
  std::vector<std::string> names;
  if (!directory_) return names;
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(::openat(directory_.get(), ".", O_RDONLY | O_CLOEXEC)),
                                                     close);
  while (const dirent* found = stream ? ::readdir(stream.get()) : nullptr)
    if (is_ours(found->d_name)) names.emplace_back(found->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<DiskCache::Listed> DiskCache::list() const {
  std::vector<Listed> listed;
  for (const std::string& name : files()) {
    if (!name.ends_with(kKernelSuffix)) continue;
    struct stat status {};
    ::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW);
    Listed& item = listed.emplace_back(Listed{name, {}, static_cast<uint64_t>(status.st_size)});
    try {
      const Archive archive = open_entry(directory_.get(), name);
      item.kernel = archive.size() == 1 ? archive.entry(0).name : "damaged: holds no kernel";
    } catch (const ArchiveError& error) {
      item.kernel = join("damaged: ", error.what());
    }
  }
  return listed;
}

size_t DiskCache::clear() {
  size_t kernels = 0;
  for (const std::string& name : files())
    if (::unlinkat(directory_.get(), name.c_str(), 0) == 0) kernels += name.ends_with(kKernelSuffix);
    else note(join(path_, "/", name, " cannot be removed: ", std::strerror(errno)));
  return kernels;
}

}  // namespace cuflash::cuda
