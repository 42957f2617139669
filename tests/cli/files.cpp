// Files that the tool writes to disk, and files that it leaves behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "cli/arguments/exit.h"
#include "files/tensors/array_file.h"
#include "support/temporary_file.h"
#include "tests/cli/program.h"
#include "tests/shared/processes.h"
#include "tests/shared/support.h"

namespace cuflash::cli {
namespace {

using namespace files;

namespace fs = std::filesystem;

class Files : public Commands {
 protected:
  void write_inputs() {
    for (const char* name : {"q.npy", "k.npy", "v.npy"}) {
      Array zeros{ElementType::f32, {1, 1, 4, 8}, std::vector<std::byte>(4 * 8 * sizeof(float))};
      write_arrays({{dir.file(name), zeros}});
    }
  }
  size_t temporary_files() const {
    size_t count = 0;
    for (const auto& found : fs::directory_iterator(dir.file("")))
      count += is_temporary_name(found.path().filename().string()) || found.path().string().ends_with(".tmp");
    return count;
  }
  // The shell execs the tool, so that it knows the process id in advance.
  Outcome run_with_leftovers(const std::string& words, const std::string& output, const std::string& environment) {
    dir.write("run.sh", "mkdir -p cache\nfor f in " + output + " ." + output +
                            "; do : >$f.$$.tmp; mkdir $f.$$.0.tmp; ln -s nowhere $f.$$.1.tmp; done\nexec env " +
                            environment + " '" + tool() + "' " + words + "\n");
    const int status = std::system(("cd '" + dir.file("") + "' && chmod 700 . && sh run.sh >stdout 2>stderr").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, dir.read("stdout"), dir.read("stderr")};
  }
};

TEST_F(Files, attend_ignores_leftovers_of_a_killed_process_with_its_id) {
  write_inputs();
  const Outcome outcome = run_with_leftovers("attend --q q.npy --k k.npy --v v.npy -o o.npy", "o.npy", "");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_TRUE(dir.has("o.npy"));
}

TEST_F(Files, pack_ignores_leftovers_of_a_killed_process_with_its_id) {
  const Outcome outcome = run_with_leftovers("pack --arch sm_90a --dtype f32 --dim 64 -o kernels.pack", "kernels.pack",
                                             fake_gpu_environment(dir));
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_TRUE(dir.has("kernels.pack"));
}

TEST_F(Files, pack_names_the_file_that_it_cannot_write) {
  fs::create_directory(dir.file("kernels.pack"));
  const Outcome outcome =
      run(dir, "pack --arch sm_90a --dtype f32 --dim 64 -o kernels.pack", fake_gpu_environment(dir));
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.err.find("cannot write 'kernels.pack': it exists and is not a regular file"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(temporary_files(), 0u);
}

// A reader would refuse a pack that is writable by a group.
TEST_F(Files, pack_can_be_written_by_its_owner_alone_whatever_the_umask) {
  const mode_t before = ::umask(0);
  const Outcome outcome =
      run(dir, "pack --arch sm_90a --dtype f32 --dim 64 -o kernels.pack", fake_gpu_environment(dir));
  ::umask(before);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_EQ(fs::status(dir.file("kernels.pack")).permissions() & (fs::perms::group_write | fs::perms::others_write),
            fs::perms::none);
  const Outcome info = run(dir, "info", "CUFLASH_PACK=kernels.pack " + fake_gpu_environment(dir));
  EXPECT_NE(info.out.find("kernels.pack: "), std::string::npos) << info.out;
}

TEST_F(Files, attend_does_not_overwrite_an_input) {
  write_inputs();
  fs::create_directory(dir.file("sub"));
  fs::create_symlink("k.npy", dir.file("soft.npy"));
  fs::create_symlink("../sub/../soft.npy", dir.file("sub/far.npy"));
  fs::create_hard_link(dir.file("k.npy"), dir.file("hard.npy"));
  const std::string inputs = "attend --q q.npy --k k.npy --v v.npy ";
  const std::string before = dir.read("k.npy");
  for (const std::string output :
       {"k.npy", "./k.npy", "sub/../k.npy", "$PWD/k.npy", "soft.npy", "sub/far.npy", "hard.npy"})
    for (const std::string& flags : {"-o " + output, "-o o.npy --lse " + output}) {
      const Outcome outcome = run(dir, inputs + flags);
      EXPECT_EQ(outcome.code, kExitUsage) << flags;
      EXPECT_NE(outcome.err.find("--k is read from this file, which would be overwritten"), std::string::npos)
          << flags << ": " << outcome.err;
      EXPECT_EQ(dir.read("k.npy"), before) << flags;
      EXPECT_FALSE(dir.has("o.npy")) << flags;
    }
  // The input through a link, the output by its own name.
  EXPECT_EQ(run(dir, "attend --q q.npy --k soft.npy --v v.npy -o k.npy").code, kExitUsage);
  // An existing file that is not an input is replaced.
  dir.write("o.npy", "old");
  EXPECT_EQ(run(dir, inputs + "-o o.npy").code, kExitOk);
  EXPECT_NE(dir.read("o.npy"), "old");
}

TEST_F(Files, attend_overwrites_no_input_of_any_flag) {
  write_inputs();
  for (const std::string flag : {"--grad-out", "--grad-lse", "--alibi", "--bias", "--mask", "--sink", "--seqlens-q",
                                 "--seqlens-k", "--cu-seqlens-q", "--cu-seqlens-k"}) {
    dir.write("x.npy", "anything");
    std::string words = "attend --q q.npy --k k.npy --v v.npy " + flag + " x.npy";
    if (flag.starts_with("--grad")) words += " --dq x.npy";
    else words += " -o x.npy";
    if (flag == "--grad-lse") words += " --grad-out q.npy";
    if (flag == "--cu-seqlens-q") words += " --cu-seqlens-k q.npy";
    if (flag == "--cu-seqlens-k") words += " --cu-seqlens-q q.npy";
    const Outcome outcome = run(dir, words);
    EXPECT_EQ(outcome.code, kExitUsage) << words;
    EXPECT_NE(outcome.err.find(flag + " is read from this file"), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(dir.read("x.npy"), "anything") << words;
  }
}

TEST_F(Files, two_outputs_are_not_one_npy_file) {
  write_inputs();
  dir.write("o.npy", "old");
  fs::create_symlink("o.npy", dir.file("soft.npy"));
  for (const std::string other : {"o.npy", "./o.npy", "soft.npy"}) {
    const Outcome outcome = run(dir, "attend --q q.npy --k k.npy --v v.npy -o o.npy --lse " + other);
    EXPECT_EQ(outcome.code, kExitUsage) << other;
    EXPECT_NE(outcome.err.find("another output has the same name"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(dir.read("o.npy"), "old");
  // Tensors of one safetensors file are written together.
  EXPECT_EQ(run(dir, "attend --q q.npy --k k.npy --v v.npy -o r.safetensors --lse r.safetensors").code, kExitOk);
}

TEST_F(Files, a_pack_replaces_regular_files_only_and_follows_links) {
  const std::string command = "pack --kernel summarize_mask:sm_90a:f32,1 -o ";
  ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);
  const Outcome refused = run(dir, command + "pipe", fake_gpu_environment(dir));
  EXPECT_EQ(refused.code, kExitUsage) << refused.err;
  EXPECT_NE(refused.err.find("it exists and is not a regular file"), std::string::npos) << refused.err;
  EXPECT_TRUE(fs::is_fifo(dir.file("pipe")));
  fs::create_symlink("kernels.pack", dir.file("link"));
  ASSERT_EQ(run(dir, command + "link", fake_gpu_environment(dir)).code, kExitOk);
  EXPECT_TRUE(fs::is_symlink(dir.file("link")));
  EXPECT_TRUE(fs::is_regular_file(dir.file("kernels.pack")));
}

[[noreturn]] void become_pack(const test::TempDir& dir) {
  if (::chdir(dir.file("").c_str()) != 0) ::_exit(2);
  ::signal(SIGINT, SIG_DFL);
  ::setenv("LD_LIBRARY_PATH", CUFLASH_FAKE_GPU_PATH, 1);
  ::setenv("CUFLASH_CACHE_DIR", dir.file("cache").c_str(), 1);
  ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
  // One architecture takes as long with a sanitizer as all of them without one.
  const char* archs = test::kSanitized ? "sm_80" : "sm_80,sm_86,sm_89,sm_90a,sm_100,sm_120";
  ::execl(tool().c_str(), "cuflash", "pack", "--arch", archs, "-o", "kernels.pack", static_cast<char*>(nullptr));
  ::_exit(3);
}

// The compiler is a fake, so a pack takes milliseconds. If it ends before it was seen writing, another one starts.
TEST_F(Files, an_interrupted_pack_leaves_no_temporary_file) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    int status = 0;
    bool interrupted = false;
    for (int attempt = 0; attempt < 200 && !interrupted; ++attempt) {
      fs::remove_all(dir.file("cache"));
      const pid_t child = test::start_child([&]() -> int { become_pack(dir); });
      pid_t ended = 0;
      while (temporary_files() == 0 && (ended = ::waitpid(child, &status, WNOHANG)) == 0) std::this_thread::yield();
      if (ended != 0) continue;
      ::kill(child, signal);
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      interrupted = WIFSIGNALED(status);
    }
    EXPECT_TRUE(interrupted && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(temporary_files(), 0u);
    EXPECT_FALSE(dir.has("kernels.pack"));
  }
}

}  // namespace
}  // namespace cuflash::cli
