// The disk cache: what it keeps, what it does not trust, and that no failure is fatal.
#include "cuda/jit/disk_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/shared/processes.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::cuda {
namespace {

namespace fs = std::filesystem;

const ArchiveEntry kEntry{sha256("key"), "a kernel", "the cubin"};
const std::string kFile = hex(kEntry.key) + ".kernel";

class Disk : public testing::Test {
 protected:
  std::string cache() const { return dir.file("cache"); }
  std::string file() const { return cache() + "/" + kFile; }
  void fill() { DiskCache(cache()).store(kEntry); }
  // The property that matters: a load returns the right code or misses, and a later store works again.
  void expect_removed_and_replaced(const std::string& reason) {
    DiskCache disk(cache());
    EXPECT_FALSE(disk.load(kEntry.key));
    EXPECT_NE(disk.state().find(reason), std::string::npos) << disk.state();
    EXPECT_FALSE(fs::exists(fs::symlink_status(file())));
    disk.store(kEntry);
    EXPECT_EQ(disk.load(kEntry.key), kEntry.cubin);
  }
  test::TempDir dir;
};

TEST_F(Disk, KeepsWhatWasStored) {
  DiskCache disk(dir.file("deep/er/cache"));
  EXPECT_FALSE(disk.load(kEntry.key));
  disk.store(kEntry);
  EXPECT_EQ(disk.load(kEntry.key), kEntry.cubin);
  EXPECT_EQ(DiskCache(dir.file("deep/er/cache")).load(kEntry.key), kEntry.cubin);
  EXPECT_EQ(disk.state(), "");
  EXPECT_EQ(fs::status(dir.file("deep/er/cache")).permissions(), fs::perms::owner_all);
}

TEST_F(Disk, LeavesNoTemporaryFiles) {
  fill();
  const DiskCache disk(cache());
  { const DiskCache::Lock lock(disk, kEntry.key); }
  size_t files = 0;
  for (const auto& found : fs::directory_iterator(cache())) {
    EXPECT_EQ(found.path().filename(), kFile);
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

// In a container the next process may have the id of the one that was killed.
TEST_F(Disk, StoresDespiteLeftoversOfAKilledProcessWithItsId) {
  fs::create_directories(cache());
  fs::permissions(cache(), fs::perms::owner_all);
  for (int n = 0; n < 200; ++n)
    dir.write("cache/" + kFile + "." + std::to_string(::getpid()) + "." + std::to_string(n) + ".tmp", "half a kernel");
  DiskCache disk(cache());
  disk.store(kEntry);
  EXPECT_EQ(disk.state(), "");
  EXPECT_EQ(disk.load(kEntry.key), kEntry.cubin);
}

TEST_F(Disk, RemovesTemporaryFilesThatAreADayOld) {
  fill();
  const std::string stale = "cache/.cuflash-0123456789abcdef.tmp", recent = "cache/.cuflash-fedcba9876543210.tmp";
  fs::last_write_time(dir.write(stale, "x"), fs::file_time_type::clock::now() - std::chrono::hours(25));
  dir.write(recent, "x");
  dir.write("cache/notes.tmp", "mine");
  fs::last_write_time(dir.file("cache/notes.tmp"), fs::file_time_type::clock::now() - std::chrono::hours(1000));
  fill();
  EXPECT_FALSE(dir.has(stale));
  EXPECT_TRUE(dir.has(recent));
  DiskCache(cache()).clear();
  EXPECT_FALSE(dir.has(recent));
  EXPECT_TRUE(dir.has("cache/notes.tmp"));
}

TEST_F(Disk, ADamagedFileIsRemoved) {
  fill();
  std::string bytes = dir.read("cache/" + kFile);
  bytes.back() ^= 1;
  dir.write("cache/" + kFile, bytes);
  expect_removed_and_replaced("checksum");
}

TEST_F(Disk, ATruncatedFileIsRemoved) {
  fill();
  for (const size_t length : {size_t{0}, size_t{10}, size_t{100}, fs::file_size(file()) - 1}) {
    fs::resize_file(file(), length);
    expect_removed_and_replaced(length < 48 ? "too short" : "truncated");
  }
}

TEST_F(Disk, AFileOfAnotherKernelIsRemoved) {
  fill();
  dir.write("cache/" + kFile, archive_bytes({{sha256("another"), "another", "another cubin"}}));
  expect_removed_and_replaced("another kernel");
}

TEST_F(Disk, AFileThatOthersCanWriteIsRemoved) {
  fill();
  fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
  expect_removed_and_replaced("another user");
}

TEST_F(Disk, ALinkIsNotFollowed) {
  fill();
  fs::rename(file(), dir.file("elsewhere"));
  fs::create_symlink(dir.file("elsewhere"), file());
  expect_removed_and_replaced("cannot be opened");
  EXPECT_TRUE(dir.has("elsewhere"));
}

TEST_F(Disk, AFifoDoesNotBlock) {
  fill();
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_removed_and_replaced("not a plain file");
}

// A directory that is not used: every load misses, and state() has the reason.
void expect_unused(const std::string& path, const std::string& reason) {
  DiskCache disk(path);
  EXPECT_FALSE(disk.usable());
  EXPECT_NE(disk.state().find(reason), std::string::npos) << path << ": " << disk.state();
  disk.store(kEntry);
  EXPECT_FALSE(disk.load(kEntry.key));
  { const DiskCache::Lock lock(disk, kEntry.key); }
  EXPECT_EQ(disk.clear(), 0u);
  EXPECT_TRUE(disk.list().empty());
}

TEST_F(Disk, ADirectoryThatOthersCanWriteIsRefused) {
  fill();
  for (const auto who : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(cache(), fs::perms::owner_all | who);
    expect_unused(cache(), "can be written by others");
  }
  fs::permissions(cache(), fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec);
  EXPECT_EQ(DiskCache(cache()).load(kEntry.key), kEntry.cubin);
}

TEST_F(Disk, ALinkToADirectoryIsRefused) {
  fill();
  fs::create_directory_symlink(cache(), dir.file("link"));
  expect_unused(dir.file("link"), "symbolic link");
  expect_unused(dir.file("link///"), "symbolic link");
}

TEST_F(Disk, PlacesThatCannotBeADirectoryAreNotUsed) {
  dir.write("file", "");
  expect_unused(dir.file("file"), "cannot be made or opened");
  expect_unused(dir.file("file/below"), "cannot be made or opened");
  expect_unused("/proc/cuflash", "cannot be made or opened");
  expect_unused("", "names a directory");
}

TEST_F(Disk, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  fill();
  ASSERT_EQ(::chown(cache().c_str(), 12345, 12345), 0);
  expect_unused(cache(), "belongs to user 12345");
}

// Permissions mean nothing to root, so the child becomes another user.
constexpr uid_t kNobody = 65534;
void become_nobody(const std::string& own) {
  if (::geteuid() != 0) return;
  for (const auto& found : fs::recursive_directory_iterator(own))
    if (::chown(found.path().c_str(), kNobody, kNobody) != 0) throw std::runtime_error("chown");
  fs::permissions(own, fs::perms::all);
  if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) throw std::runtime_error("setuid");
}

TEST_F(Disk, AReadOnlyDirectoryIsReadAndNotWritten) {
  fill();
  const int result = test::in_child([&] {
    become_nobody(dir.file(""));
    if (::chmod(cache().c_str(), 0500) != 0) return 1;
    DiskCache disk(cache());
    if (disk.load(kEntry.key) != kEntry.cubin) return 2;
    const ArchiveEntry other{sha256("other"), "other", "other cubin"};
    { const DiskCache::Lock lock(disk, other.key); }
    disk.store(other);
    if (disk.load(other.key)) return 3;
    if (disk.state().find("cannot be written: Permission denied") == std::string::npos) return 4;
    return disk.load(kEntry.key) == kEntry.cubin ? 0 : 5;
  });
  EXPECT_EQ(result, 0);
  fs::permissions(cache(), fs::perms::owner_all);
}

TEST_F(Disk, AFullDiskLeavesNothingBehind) {
  fill();
  const ArchiveEntry large{sha256("large"), "large", std::string(100000, 'x')};
  const int result = test::in_child([&] {
    // A limit on file sizes simulates a full disk: a write fails half way.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10000, 10000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    DiskCache disk(cache());
    disk.store(large);
    if (disk.load(large.key)) return 2;
    if (disk.state().find("cannot be written: File too large") == std::string::npos) return 3;
    return disk.load(kEntry.key) == kEntry.cubin ? 0 : 4;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache()), fs::directory_iterator()), 1);
}

TEST_F(Disk, TheLockIsHeldByOneProcessAtATime) {
  fill();
  constexpr int kProcesses = 4, kRounds = 10;
  pid_t children[kProcesses];
  for (pid_t& child : children)
    child = test::start_child([&] {
      const DiskCache disk(cache());
      for (int turn = 0; turn < kRounds; ++turn) {
        const DiskCache::Lock lock(disk, kEntry.key);
        // Would fail if two threads were here at once.
        if (::open(dir.file("inside").c_str(), O_CREAT | O_EXCL, 0600) < 0) return 1;
        ::usleep(2000);
        if (::unlink(dir.file("inside").c_str()) != 0) return 2;
      }
      return 0;
    });
  for (const pid_t child : children) EXPECT_EQ(test::result_of(child), 0);
}

TEST_F(Disk, ALockThatCannotBeHadIsNoObstacle) {
  fill();
  const DiskCache disk(cache());
  const std::string lock_file = cache() + "/" + hex(kEntry.key) + ".lock";
  dir.write("cache/" + hex(kEntry.key) + ".lock", "left by a process that died");
  { const DiskCache::Lock lock(disk, kEntry.key); }
  fs::create_directory(lock_file);
  { const DiskCache::Lock lock(disk, kEntry.key); }
  EXPECT_TRUE(fs::is_directory(lock_file));
}

TEST_F(Disk, ListsAndClearsItsOwnFilesOnly) {
  fill();
  dir.write("cache/notes.txt", "mine");
  dir.write("cache/" + std::string(64, 'a') + ".kernel", "not a kernel, but named as one");
  dir.write("cache/" + std::string(64, 'b') + ".1.2.tmp", "left by a process that died");
  DiskCache disk(cache());
  const auto listed = disk.list();
  ASSERT_EQ(listed.size(), 2u);
  size_t good = 0, damaged = 0;
  for (const auto& item : listed) {
    good += item.kernel == "a kernel" && item.bytes == fs::file_size(file());
    damaged += item.kernel.starts_with("damaged: ");
  }
  EXPECT_EQ(good, 1u);
  EXPECT_EQ(damaged, 1u);
  EXPECT_EQ(disk.clear(), 2u);
  EXPECT_TRUE(dir.has("cache/notes.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace cuflash::cuda
