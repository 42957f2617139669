// The sources of compiled kernels, their order, and the messages if a kernel is in none of them.
#include "cuda/jit/binaries.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "error.h"
#include "nvrtc.h"
#include "tests/shared/processes.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::cuda {
namespace {

namespace fs = std::filesystem;
using test::small_program;

class BinariesTest : public testing::Test {
 protected:
  std::string cache() const { return dir.file("cache"); }
  std::string pack_of(const Program& program, const std::string& cubin) {
    return dir.write("pack", archive_bytes({{pack_key(program), program.name, cubin}}));
  }
  // The sentence of the refusal.
  static std::string refusal(Binaries& binaries, const Program& program, cuflash_status status = CUFLASH_NO_DEVICE) {
    try {
      binaries.get(program);
    } catch (const FlashAttentionError& error) {
      EXPECT_EQ(error.status(), status) << error.what();
      return error.what();
    }
    return "";
  }
  test::TempDir dir;
};

TEST_F(BinariesTest, KeysKnowWhatDecidesTheResult) {
  const Program program = small_program();
  Program other_source = program, other_arch = program, other_name = program;
  other_source.source += " ";
  other_arch.arch = arch_named("sm_80");
  other_name.name += " ";
  EXPECT_NE(pack_key(program), pack_key(other_source));
  EXPECT_NE(pack_key(program), pack_key(other_arch));
  EXPECT_EQ(pack_key(program), pack_key(other_name));
  EXPECT_NE(disk_key(program, 13000), disk_key(other_source, 13000));
  EXPECT_NE(disk_key(program, 13000), disk_key(other_arch, 13000));
  EXPECT_NE(disk_key(program, 13000), disk_key(program, 12080));
  EXPECT_NE(disk_key(program, 13000), pack_key(program));
}

TEST_F(BinariesTest, ThePackComesFirstAndNeedsNoCompiler) {
  const Program program = small_program();
  Binaries binaries({cache(), pack_of(program, "from the pack"), "off"});
  const Binary binary = binaries.get(program);
  EXPECT_EQ(binary.cubin, "from the pack");
  EXPECT_EQ(binary.origin, Origin::pack);
}

TEST_F(BinariesTest, JitOffSaysWhatToPack) {
  const Program program = small_program();
  Binaries without({cache(), "", "off"});
  std::string text = refusal(without, program);
  for (const char* part :
       {"small0", "CUFLASH_JIT=off", "CUFLASH_PACK names no pack", "cuflash pack --arch sm_90a --kernel small0"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  Binaries other({cache(), pack_of(small_program(1), "x"), "off"});
  text = refusal(other, program);
  EXPECT_NE(text.find("does not have it"), std::string::npos) << text;
}

TEST_F(BinariesTest, ABadPackIsNamedInTheRefusal) {
  const Program program = small_program();
  Binaries missing({cache(), dir.file("nowhere"), "off"});
  EXPECT_NE(refusal(missing, program).find("No such file"), std::string::npos);
  Binaries damaged(
      {cache(), dir.write("pack", "not a pack, but long enough to be looked at as if it were one"), "off"});
  EXPECT_NE(refusal(damaged, program).find("is not a pack of kernels"), std::string::npos);
  EXPECT_EQ(damaged.pack_size(), 0u);
  std::string bytes = archive_bytes({{pack_key(program), program.name, "cubin"}});
  bytes.back() ^= 1;
  Binaries one_bad_entry({cache(), dir.write("pack", bytes), "off"});
  EXPECT_NE(refusal(one_bad_entry, program).find("does not have it"), std::string::npos);
}

// A pack is code: the rules of the cache directory apply to it, checked on the open file.
TEST_F(BinariesTest, APackThatAnotherUserCouldHaveWrittenIsRefused) {
  const Program program = small_program();
  const std::string path = pack_of(program, "cubin");
  for (const fs::perms who : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | who);
    Binaries binaries({cache(), path, "off"});
    EXPECT_NE(refusal(binaries, program).find("can be written by others, and code is run from it; chmod go-w it"),
              std::string::npos);
    EXPECT_EQ(binaries.pack_size(), 0u);
    // A link to the pack is refused, too; the mode of the link itself means nothing.
    fs::create_symlink(path, dir.file("link"));
    Binaries linked({cache(), dir.file("link"), "off"});
    EXPECT_NE(refusal(linked, program).find("can be written by others"), std::string::npos);
    fs::remove(dir.file("link"));
  }
  fs::permissions(path, fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
  Binaries binaries({cache(), path, "off"});
  EXPECT_EQ(binaries.get(program).cubin, "cubin");
}

TEST_F(BinariesTest, APackMayBeReachedByALink) {
  const Program program = small_program();
  fs::create_symlink(pack_of(program, "cubin"), dir.file("link"));
  Binaries binaries({cache(), dir.file("link"), "off"});
  EXPECT_EQ(binaries.get(program).cubin, "cubin");
}

TEST_F(BinariesTest, APackOfAnotherUserIsRefusedAndOneOfRootIsNot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  constexpr uid_t kNobody = 65534, kSomeUser = 12345;
  const Program program = small_program();
  const std::string path = pack_of(program, "cubin");
  ASSERT_EQ(::chown(path.c_str(), kSomeUser, 0), 0);
  Binaries of_another({cache(), path, "off"});
  EXPECT_NE(
      refusal(of_another, program).find("belongs to user 12345, and code is run from it; it must belong to user 0"),
      std::string::npos);
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  fs::permissions(dir.file(""), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  const int result = test::in_child([&] {
    if (::setuid(kNobody) != 0) return 1;
    Binaries of_root({"", path, "off"});
    return of_root.get(program).cubin == "cubin" ? 0 : 2;
  });
  EXPECT_EQ(result, 0);
}

TEST_F(BinariesTest, CompilesOnceAndKeepsIt) {
  CUFLASH_NEEDS_NVRTC();
  const Program program = small_program();
  Binaries first({cache(), "", ""});
  const Binary compiled = first.get(program);
  EXPECT_EQ(compiled.origin, Origin::compiler);
  EXPECT_EQ(compiled.cubin.substr(1, 3), "ELF");
  const Binary kept = first.get(program);
  EXPECT_EQ(kept.origin, Origin::disk);
  EXPECT_EQ(kept.cubin, compiled.cubin);
  Binaries second({cache(), "", "off"});  // a later process
  EXPECT_EQ(second.get(program).origin, Origin::disk);
  Binaries packed({cache(), pack_of(program, compiled.cubin), "on"});
  EXPECT_EQ(packed.get(program).origin, Origin::pack);
}

TEST_F(BinariesTest, ADamagedCacheFileIsCompiledAgain) {
  CUFLASH_NEEDS_NVRTC();
  const Program program = small_program();
  const std::string cubin = Binaries({cache(), "", ""}).get(program).cubin;
  const std::string file = "cache/" + hex(disk_key(program, nvrtc().version)) + ".kernel";
  ASSERT_TRUE(dir.has(file));
  std::string bytes = dir.read(file);
  bytes[bytes.size() / 2] ^= 1;
  dir.write(file, bytes);
  Binaries binaries({cache(), "", ""});
  const Binary again = binaries.get(program);
  EXPECT_EQ(again.origin, Origin::compiler);
  EXPECT_EQ(again.cubin, cubin);
  EXPECT_EQ(binaries.get(program).origin, Origin::disk);
}

TEST_F(BinariesTest, WorksWithoutADirectory) {
  CUFLASH_NEEDS_NVRTC();
  std::filesystem::create_directory(cache());
  std::filesystem::permissions(cache(), std::filesystem::perms::all);
  for (const std::string& path : {cache(), std::string("/proc/cuflash"), std::string()}) {
    Binaries binaries({path, "", ""});
    EXPECT_EQ(binaries.get(small_program()).origin, Origin::compiler) << path;
    EXPECT_NE(binaries.disk().state(), "") << path;
  }
}

TEST_F(BinariesTest, OneOfManyProcessesCompiles) {
  CUFLASH_NEEDS_NVRTC();
  pid_t children[4];
  for (pid_t& child : children)
    child = test::start_child([&] {
      Binaries binaries({cache(), "", ""});
      return static_cast<int>(binaries.get(small_program(7)).origin);
    });
  int compiled = 0, loaded = 0;
  for (const pid_t child : children) {
    const int origin = test::result_of(child);
    compiled += origin == static_cast<int>(Origin::compiler);
    loaded += origin == static_cast<int>(Origin::disk);
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(loaded, 3);
}

TEST_F(BinariesTest, OneOfManyThreadsCompiles) {
  CUFLASH_NEEDS_NVRTC();
  Binaries binaries({cache(), "", ""});
  std::atomic<int> compiled{0};
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 4; ++n)
      threads.emplace_back([&] { compiled += binaries.get(small_program(8)).origin == Origin::compiler; });
  }
  EXPECT_EQ(compiled, 1);
}

TEST_F(BinariesTest, TheCompilersWordsAreInTheError) {
  CUFLASH_NEEDS_NVRTC();
  Program program = small_program();
  program.source = "this is not a program;";
  Binaries binaries({cache(), "", ""});
  const std::string text = refusal(binaries, program, CUFLASH_INTERNAL);
  for (const char* part : {"small0", "NVRTC", "error", "this"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_LT(text.size(), 1000u);
  EXPECT_FALSE(dir.has("cache/" + hex(disk_key(program, nvrtc().version)) + ".kernel"));
}

TEST_F(BinariesTest, ATargetThatTheCompilerDoesNotKnowIsNamed) {
  CUFLASH_NEEDS_NVRTC();
  Program program = small_program();
  program.arch = {99, 9, 1, 1};
  Binaries binaries({cache(), "", ""});
  const std::string text = refusal(binaries, program);
  EXPECT_NE(text.find("does not compile for sm_999"), std::string::npos) << text;
}

}  // namespace
}  // namespace cuflash::cuda
