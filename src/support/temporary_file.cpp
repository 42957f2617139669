#include "support/temporary_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>

namespace cuflash {
namespace {

constexpr std::string_view kPrefix = ".cuflash-", kSuffix = ".tmp";
constexpr size_t kDigits = 16, kNameSize = kPrefix.size() + kDigits + kSuffix.size();
constexpr time_t kStale = 24 * 60 * 60;  // no write takes that long
constexpr int kAttempts = 100;           // a name of 64 random bits is hardly ever taken

// A random name; "" if the system has no random bytes.
std::string random_name() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) return "";
  std::string name(kPrefix);
  for (size_t n = 0; n < kDigits; ++n, bits >>= 4) name += "0123456789abcdef"[bits & 15];
  return name += kSuffix;
}

bool is_stale(int directory, const char* name) {
  struct stat status {};
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid() && std::time(nullptr) - status.st_mtime > kStale;
}

void remove_stale(int directory) {
  File listed(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listed) return;
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(listed.get()), close);
  if (!stream) return;
  listed.release();
  while (const dirent* found = ::readdir(stream.get()))
    if (is_temporary_name(found->d_name) && is_stale(directory, found->d_name)) ::unlinkat(directory, found->d_name, 0);
}

// What a signal handler can read: no allocation, no lock. A slot belongs to the thread or handler that moved its state
// last, so a handler never sees a name that is being changed.
enum State : int { empty, changing, named, taken };
struct Slot {
  std::atomic<int> state = empty;
  int directory = -1;
  char name[kNameSize + 1] = {};
};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<Slot, 64> slots;

// Enters a file and returns its slot; -1 if there are more files than slots. A signal then leaves that file behind,
// until it is stale.
int enter(int directory, const std::string& name) {
  for (size_t n = 0; n < slots.size(); ++n) {
    int expected = empty;
    if (!slots[n].state.compare_exchange_strong(expected, changing)) continue;
    slots[n].directory = directory;
    std::memcpy(slots[n].name, name.c_str(), name.size() + 1);
    slots[n].state = named;
    return static_cast<int>(n);
  }
  return -1;
}

void leave(int slot) {
  int expected = named;
  if (slot >= 0) slots[static_cast<size_t>(slot)].state.compare_exchange_strong(expected, empty);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

bool is_temporary_name(std::string_view name) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == kNameSize && name.starts_with(kPrefix) && name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(), is_digit);
}

void remove_temporary_files() noexcept {
  for (Slot& slot : slots) {
    int expected = named;
    if (slot.state.compare_exchange_strong(expected, taken)) ::unlinkat(slot.directory, slot.name, 0);
  }
}

TemporaryFile::TemporaryFile(int directory, std::string name, mode_t mode)
    : directory_(::fcntl(directory, F_DUPFD_CLOEXEC, 0)), name_(std::move(name)) {
  if (note(static_cast<bool>(directory_))) make(mode);
}

TemporaryFile::TemporaryFile(const std::string& path, mode_t mode)
    : directory_(::open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
      name_(path.substr(path.rfind('/') + 1)) {
  if (note(static_cast<bool>(directory_))) make(mode);
}

TemporaryFile::~TemporaryFile() {
  if (made_) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
  leave(slot_);
}

// The name is entered before the file exists, so that a signal at any moment leaves no file behind.
void TemporaryFile::make(mode_t mode) {
  if (name_.empty()) {
    error_ = EISDIR;
    return;
  }
  remove_stale(directory_.get());
  for (int attempt = 0; attempt < kAttempts && !made_; ++attempt) {
    temporary_ = random_name();
    if (!note(!temporary_.empty())) return;
    slot_ = enter(directory_.get(), temporary_);
    file_ = File(
        ::openat(directory_.get(), temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    made_ = note(static_cast<bool>(file_));
    if (!made_) leave(std::exchange(slot_, -1));
    if (!made_ && error_ != EEXIST) return;
  }
}

bool TemporaryFile::note(bool worked) {
  if (!worked) error_ = errno;
  return worked;
}

bool TemporaryFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (!note(written >= 0)) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool TemporaryFile::sync() { return note(::fsync(file_.get()) == 0); }
bool TemporaryFile::close() { return note(file_.close()); }

bool TemporaryFile::put_in_place() {
  if (!close() || !note(::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name_.c_str()) == 0))
    return false;
  made_ = false;
  return true;
}

}  // namespace cuflash
