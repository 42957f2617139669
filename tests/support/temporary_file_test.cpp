// Files that appear complete or not at all, whatever earlier processes left behind.
#include "support/temporary_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/shared/processes.h"
#include "tests/shared/temp_dir.h"

namespace cuflash {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class TemporaryFiles : public testing::Test {
 protected:
  bool replace(const std::string& content, const std::string& name = "o.npy") {
    TemporaryFile file(dir.file(name), 0644);
    return file && file.write(content) && file.sync() && file.put_in_place();
  }
  // A file of this age.
  void plant(const std::string& name, std::chrono::seconds age) {
    dir.write(name, "left by a process that died");
    fs::last_write_time(dir.file(name), fs::file_time_type::clock::now() - age);
  }
  std::string temporary_name() {
    const TemporaryFile file(dir.file("o.npy"), 0644);
    return file.temporary_name();
  }
  test::TempDir dir;
};

TEST_F(TemporaryFiles, AppearCompleteAndLeaveNoOtherFile) {
  EXPECT_TRUE(replace("first"));
  EXPECT_TRUE(replace("second"));
  EXPECT_EQ(dir.read("o.npy"), "second");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST_F(TemporaryFiles, DisappearUnlessTheyArePutInPlace) {
  dir.write("o.npy", "old");
  {
    TemporaryFile file(dir.file("o.npy"), 0644);
    ASSERT_TRUE(file);
    EXPECT_TRUE(file.write("half of it"));
    EXPECT_TRUE(dir.has(file.temporary_name()));
  }
  EXPECT_EQ(dir.read("o.npy"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

// Process ids are reused, and in a container they are reused immediately.
TEST_F(TemporaryFiles, HaveNamesThatNoOtherProcessHasWhateverItsId) {
  std::set<std::string> names;
  for (int n = 0; n < 100; ++n) names.insert(temporary_name());
  EXPECT_EQ(names.size(), 100u);
  const std::string id = std::to_string(::getpid()) + ".";
  int with_id = 0;
  for (const std::string& name : names) {
    EXPECT_TRUE(is_temporary_name(name)) << name;
    with_id += name.find(id) != std::string::npos;
  }
  EXPECT_LT(with_id, 50) << "a random name ends in the digits of an id now and then";
}

TEST_F(TemporaryFiles, AreMadeDespiteLeftoversOfEarlierVersions) {
  const std::string pid = std::to_string(::getpid());
  for (const std::string& name : {"o.npy." + pid + ".tmp", ".o.npy." + pid + ".tmp", "o.npy." + pid + ".0.tmp"})
    dir.write(name, "left");
  fs::create_directory(dir.file("o.npy." + pid + ".1.tmp"));
  fs::create_symlink("/nowhere", dir.file("o.npy." + pid + ".2.tmp"));
  EXPECT_TRUE(replace("new"));
  EXPECT_EQ(dir.read("o.npy"), "new");
  EXPECT_EQ(dir.entries(), 6u);
}

TEST_F(TemporaryFiles, AreRemovedWhenTheyAreADayOldAndNothingElseIs) {
  const std::string stale = temporary_name(), recent = temporary_name(), folder = temporary_name(),
                    link = temporary_name();
  plant(stale, 25h);
  plant(recent, 23h);
  const std::set<std::string> others{".cuflash-0123456789abcdeg.tmp",
                                     ".cuflash-0123456789abcde.tmp",
                                     ".cuflash-0123456789abcdef.tmp2",
                                     "cuflash-0123456789abcdef.tmp",
                                     "notes.tmp",
                                     "o.npy.17.tmp"};
  for (const std::string& name : others) plant(name, 1000h);
  fs::create_directory(dir.file(folder));
  fs::create_symlink(dir.file("notes.tmp"), dir.file(link));
  EXPECT_TRUE(replace("new"));
  EXPECT_FALSE(dir.has(stale));
  EXPECT_TRUE(dir.has(recent));
  EXPECT_TRUE(dir.has(folder));
  EXPECT_TRUE(dir.has(link));
  for (const std::string& name : others) EXPECT_TRUE(dir.has(name)) << name;
}

TEST_F(TemporaryFiles, SayWhyTheyCannotBeMade) {
  const std::pair<std::string, int> cases[] = {{dir.file("nowhere/o.npy"), ENOENT},
                                               {dir.file("folder/"), EISDIR},
                                               {dir.write("plain", "x") + "/o.npy", ENOTDIR}};
  fs::create_directory(dir.file("folder"));
  for (const auto& [path, error] : cases) {
    const TemporaryFile file(path, 0644);
    EXPECT_FALSE(file) << path;
    EXPECT_EQ(file.error(), error) << path;
  }
  TemporaryFile onto_directory(dir.file("folder"), 0644);
  ASSERT_TRUE(onto_directory);
  EXPECT_FALSE(onto_directory.put_in_place());
  EXPECT_EQ(onto_directory.error(), EISDIR);
}

TEST_F(TemporaryFiles, TakeNamesOfTheGreatestLength) {
  const std::string name(255, 'x');
  EXPECT_TRUE(replace("new", name));
  EXPECT_EQ(dir.read(name), "new");
}

TEST_F(TemporaryFiles, AreNoOneElsesToWrite) {
  const mode_t before = ::umask(0);
  EXPECT_TRUE(replace("new"));
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(dir.file("o.npy").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
}

// Calls the function of the tool's signal handler, in a process that ends after it.
TEST_F(TemporaryFiles, AreRemovedBySignals) {
  dir.write("kept", "x");
  const int result = test::in_child([&] {
    TemporaryFile done(dir.file("done"), 0644);
    if (!done.put_in_place()) return 1;
    const TemporaryFile one(dir.file("one"), 0644), two(dir.file("two"), 0644);
    if (dir.entries() != 4) return 2;
    remove_temporary_files();
    return dir.entries() == 2 && dir.has("done") && dir.has("kept") ? 0 : 3;
  });
  EXPECT_EQ(result, 0);
}

TEST_F(TemporaryFiles, MayBeMany) {
  std::vector<std::unique_ptr<TemporaryFile>> files;
  for (int n = 0; n < 200; ++n) {
    files.push_back(std::make_unique<TemporaryFile>(dir.file("f" + std::to_string(n)), 0644));
    ASSERT_TRUE(*files.back());
  }
  for (const auto& file : files) EXPECT_TRUE(file->put_in_place());
  EXPECT_EQ(dir.entries(), 200u);
}

}  // namespace
}  // namespace cuflash
