// The other commands, run as programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/arguments/exit.h"
#include "cli/check/check.h"
#include "cli/io/ncu.h"
#include "cuda/jit/binaries.h"
#include "cuda/plan/typical.h"
#include "support/text.h"
#include "tests/cli/program.h"
#include "tests/cuda/jit/nvrtc.h"

namespace cuflash::cli {
namespace {

TEST_F(Commands, help_and_version) {
  for (const char* command :
       {"", "attend", "explain", "check", "demo", "bench", "tune", "info", "cache", "cache list", "pack"}) {
    const Outcome outcome = run(dir, std::string(command) + " --help");
    EXPECT_EQ(outcome.code, kExitOk) << command;
    EXPECT_NE(outcome.out.find("Usage"), std::string::npos) << command;
  }
  EXPECT_EQ(run(dir, "--version").out, std::string(cuflash_version()) + "\n");
}

TEST_F(Commands, info_names_version_threads_and_devices) {
  const Outcome outcome = run(dir, "info");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {cuflash_version(), "threads", "libcuda", "libnvrtc", "CUFLASH_NUM_THREADS"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  }
  ::setenv("CUFLASH_NUM_THREADS", "3", 1);
  EXPECT_NE(run(dir, "info").out.find("threads      3"), std::string::npos);
  ::unsetenv("CUFLASH_NUM_THREADS");
}

TEST_F(Commands, info_says_what_is_wrong_with_cache_and_pack) {
  dir.write("pack", "not a pack, but long enough to be looked at as if it were one of them");
  std::filesystem::create_directory(dir.file("open"));
  std::filesystem::permissions(dir.file("open"), std::filesystem::perms::all);
  const Outcome outcome = run(dir, "info", "CUFLASH_CACHE_DIR=open CUFLASH_PACK=pack");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"open can be written by others", "pack is not a pack of kernels"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
}

TEST_F(Commands, info_names_a_setting_that_is_wrong_and_prints_nothing_else) {
  for (const auto& [setting, sentence] : std::initializer_list<std::pair<const char*, const char*>>{
           {"CUFLASH_NUM_THREADS=abc", "CUFLASH_NUM_THREADS: is 'abc', must be a whole number from 1 to 1024"},
           {"CUFLASH_CPU_ISA=mmx", "CUFLASH_CPU_ISA: \"mmx\" is not an instruction set"},
           {"CUFLASH_TUNED=xx", "CUFLASH_TUNED: is 'xx', must be on or off"},
           {"CUFLASH_JIT=xx", "CUFLASH_JIT: is 'xx', must be on or off"},
           {"CUFLASH_CUDA_KERNELS=xx", "CUFLASH_CUDA_KERNELS: is 'xx', must be portable or best"}}) {
    const Outcome outcome = run(dir, "info", setting);
    EXPECT_EQ(outcome.code, kExitFailed) << setting;
    EXPECT_EQ(outcome.out, "") << setting;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << setting << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(Commands, the_variable_of_a_cache_that_cannot_be_used_is_named) {
  dir.write("plain", "x");
  for (const auto& [value, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"plain", "Not a directory"}, {"/proc/x", "/proc/x cannot"}}) {
    const std::string setting = std::string("CUFLASH_CACHE_DIR=") + value;
    const std::string sentence = std::string("CUFLASH_CACHE_DIR: ") + value + " cannot be made or opened: ";
    EXPECT_NE(run(dir, "info", setting).out.find("not used: " + sentence), std::string::npos) << setting;
    for (const char* command : {"cache list", "tune --device cpu --len 16"}) {
      const Outcome outcome = run(dir, command, setting);
      EXPECT_EQ(outcome.code, kExitUsage) << command;
      EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
    }
  }
}

TEST_F(Commands, info_measures_a_compile_and_a_load) {
  CUFLASH_NEEDS_NVRTC();
  const Outcome outcome = run(dir, "info --measure", "CUFLASH_CACHE_DIR=cache");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const size_t at = outcome.out.find("compile      ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  double cold = 0, warm = 0;
  ASSERT_EQ(std::sscanf(outcome.out.c_str() + at, "compile %lf s cold, %lf ms from disk", &cold, &warm), 2);
  EXPECT_GT(cold, 0.1);
  EXPECT_GT(warm, 0);
  EXPECT_LT(warm, 100 * cold) << "loading must be much faster than compiling";
}

TEST_F(Commands, cache_lists_and_clears) {
  const cuda::ArchiveEntry entry{sha256("key"), "a kernel", "its code"};
  cuda::DiskCache(dir.file("cache")).store(entry);
  const std::string environment = "CUFLASH_CACHE_DIR=cache";
  const Outcome listed = run(dir, "cache list", environment);
  EXPECT_EQ(listed.code, kExitOk) << listed.err;
  for (const char* word : {"a kernel", "1 kernels"}) EXPECT_NE(listed.out.find(word), std::string::npos) << listed.out;
  const Outcome cleared = run(dir, "cache clear", environment);
  EXPECT_EQ(cleared.code, kExitOk) << cleared.err;
  EXPECT_NE(cleared.out.find("removed 1 kernels"), std::string::npos) << cleared.out;
  EXPECT_NE(run(dir, "cache list", environment).out.find("0 kernels"), std::string::npos);
  EXPECT_EQ(run(dir, "cache", environment).code, kExitUsage);
  const Outcome unusable = run(dir, "cache list", "CUFLASH_CACHE_DIR=/proc/cuflash");
  EXPECT_EQ(unusable.code, kExitUsage);
  EXPECT_NE(unusable.err.find("cannot be made"), std::string::npos) << unusable.err;
}

TEST_F(Commands, pack_writes_a_file_that_serves_without_a_compiler) {
  CUFLASH_NEEDS_NVRTC();
  const cuda::KernelKey key =
      cuda::plan_forward(cuda::forward_of({.dim_qk = 64, .dim_v = 64}), cuda::arch_named("sm_80")).launch.kernel;
  const std::string name = cuda::name_of(key);
  const Outcome packed = run(dir, "pack --kernel " + name + " -o kernels.pack", "CUFLASH_CACHE_DIR=cache");
  ASSERT_EQ(packed.code, kExitOk) << packed.err;
  EXPECT_NE(packed.out.find("1 kernels"), std::string::npos) << packed.out;
  cuda::Binaries binaries({"", dir.file("kernels.pack"), "off"});
  const cuda::Binary binary = binaries.get(cuda::program_of(key));
  EXPECT_EQ(binary.origin, cuda::Origin::pack);
  EXPECT_EQ(binary.cubin.substr(1, 3), "ELF");
  const Outcome info = run(dir, "info", "CUFLASH_PACK=kernels.pack CUFLASH_CACHE_DIR=cache");
  EXPECT_NE(info.out.find("kernels.pack: 1 kernels"), std::string::npos) << info.out;
}

TEST_F(Commands, pack_fails_with_one_sentence_and_no_file) {
  for (const auto& [words, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"-o x", "--arch or --kernel"},
           {"--arch sm_90a", "--out is required"},
           {"--arch sm_70 -o x", "sm_80, sm_86"},
           {"--kernel forward -o x", "must be <kernel>"},
           {"--kernel forward:sm_80:f16,64,64,128,64,4,1,2,2,0,0 -o nowhere/x", "nowhere/x"}}) {
    const Outcome outcome = run(dir, std::string("pack ") + words, "CUFLASH_CACHE_DIR=cache");
    EXPECT_NE(outcome.code, kExitOk) << words;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
    EXPECT_FALSE(dir.has("x")) << words;
  }
}

TEST_F(Commands, explain_allocates_nothing_and_refuses_nonsense) {
  const std::string large =
      "explain --batch 64 --heads 32 --heads-k 8 --len 1000000 --len-k 1000001 --head-dim 128 --head-dim-v 64 --dtype "
      "bf16 ";
  for (const char* flags :
       {"", "--backward", "--lse --causal --window 4,4 --align top-left --layout bshd",
        "--alibi --bias --mask --sink --backward --softcap 30 --dropout 0.1 --seed 1 --device cpu"}) {
    const Outcome outcome = run(dir, large + flags);
    EXPECT_EQ(outcome.code, kExitOk) << flags << ": " << outcome.err;
    EXPECT_GT(outcome.out.size(), 20u) << flags;
  }
  EXPECT_EQ(run(dir, "explain --heads 3 --heads-k 2").code, kExitFailed);
  EXPECT_EQ(run(dir, "explain --len -1").code, kExitUsage);
  EXPECT_EQ(run(dir, "explain --batch 2000000000 --heads 2000000000 --len 2000000000").code, kExitUsage);
}

TEST_F(Commands, check_runs_and_repeats_problems) {
  const Outcome outcome = run(dir, "check --count 50 --seed 3 --first 10 --threads 2");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("50 problems"), std::string::npos) << outcome.out;
  const Outcome one = run(dir, "check --seed 3 --only 12");
  EXPECT_EQ(one.code, kExitOk) << one.err;
  EXPECT_NE(one.out.find("1 problems"), std::string::npos) << one.out;
  const Outcome cache = run(dir, "check --cache --count 20 --seed 3 --threads 2");
  EXPECT_EQ(cache.code, kExitOk) << cache.err;
  EXPECT_NE(cache.out.find("20 calls over a cache"), std::string::npos) << cache.out;
  EXPECT_NE(run(dir, "check --cache --seed 3 --only 12").out.find("num_splits"), std::string::npos);
  EXPECT_EQ(run(dir, "check --count 0").code, kExitUsage);
  EXPECT_EQ(run(dir, "check --first 18446744073709551615 --count 2").code, kExitUsage);
}

TEST_F(Commands, check_goes_on_until_its_time_is_over_or_a_signal_comes) {
  const Outcome timed = run(dir, "check --forever --minutes 0.005 --seed 3 --first 7 --threads 2");
  EXPECT_EQ(timed.code, kExitOk) << timed.err;
  EXPECT_NE(timed.out.find("seed 3, from problem 7"), std::string::npos) << timed.out;
  // The next problem follows those that were checked.
  uint64_t checked = 0, next = 0;
  const size_t summary = timed.out.find('\n') + 1, resume = timed.out.find("--first ");
  ASSERT_NE(resume, std::string::npos) << timed.out;
  checked = std::stoull(timed.out.substr(summary)), next = std::stoull(timed.out.substr(resume + 8));
  EXPECT_GT(checked, 0u);
  EXPECT_EQ(next, 7 + checked);

  for (const std::string signal : {"INT", "TERM"}) {
    // The shell waits for the first output, and passes the exit code on.
    const std::string command = "cd '" + dir.file("") + "' && : >stdout && { env --default-signal=INT '" + tool() +
                                "' check --forever --cache --threads 1 >stdout 2>stderr & } && "
                                "while ! test -s stdout; do sleep 0.02; done; kill -" +
                                signal + " $!; wait $!";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << signal;
    EXPECT_EQ(WEXITSTATUS(status), kExitOk) << signal;
    const std::string out = dir.read("stdout");
    EXPECT_NE(out.find("resume with: cuflash check --forever --seed 1 --first"), std::string::npos) << out;
    EXPECT_NE(out.find(" --cache\n"), std::string::npos) << out;
  }
  for (const char* flags :
       {"--minutes nan", "--minutes 0", "--minutes 1e300", "--max-growth -1", "--count 3", "--only 1"})
    EXPECT_EQ(run(dir, std::string("check --forever ") + flags).code, kExitUsage) << flags;
  EXPECT_EQ(run(dir, "check --minutes 1").code, kExitUsage);
}

TEST_F(Commands, check_on_cuda_tells_what_it_covered) {
  const Outcome outcome =
      run(dir, "check --device cuda --plain --count 3 --kernel-sets 2 --threads 1", fake_gpu_environment(dir));
  EXPECT_NE(outcome.err.find("--plain --device cuda --kernel-sets 2"), std::string::npos) << outcome.err;
  for (const char* text : {"3 problems (seed 1, from 0, cuda)", "cases: ALiBi 0, ", " kernels: ", "sm90_forward ",
                           " of them compiled in ", "seconds of all threads: "})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  EXPECT_EQ(run(dir, "check --kernel-sets 2 --head-sizes 2").code, kExitUsage);
}

// More than the few that the summary shows, each with the command that repeats it; a second run appends.
TEST_F(Commands, check_writes_every_failure_to_a_file) {
  constexpr int kProblems = 14;
  const std::string words = join("check --device cuda --plain --seed 3 --kernel-sets 2 --threads 2 --count ", kProblems,
                                 " --failures failures");
  EXPECT_EQ(run(dir, words, fake_gpu_environment(dir)).code, kExitFailed);
  EXPECT_EQ(run(dir, words, "CUFLASH_CUDA_KERNELS=portable " + fake_gpu_environment(dir)).code, kExitFailed);
  std::istringstream file(dir.read("failures"));
  const std::string command = "cuflash check --seed 3 --only ", flags = " --plain --device cuda --kernel-sets 2  # ";
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const std::string start = lines < kProblems ? command : "CUFLASH_CUDA_KERNELS=portable " + command;
    EXPECT_EQ(line.rfind(start, 0), 0u) << line;
    EXPECT_NE(line.find(flags), std::string::npos) << line;
  }
  EXPECT_EQ(lines, 2 * kProblems);
  EXPECT_EQ(run(dir, "check --count 1 --failures no/such/folder").code, kExitUsage);
  EXPECT_EQ(run(dir, "check --forever --failures failures").code, kExitUsage);
}

// A driver that does not run kernels: no result is written.
TEST_F(Commands, check_forever_ends_at_a_mismatch_with_its_reproduction) {
  const Outcome outcome = run(dir, "check --forever --device cuda --head-sizes 1 --threads 1 --seed 5 --first 40",
                              fake_gpu_environment(dir));
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_NE(outcome.out.find("1 problems (seed 5, from 40, cuda)"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("--seed 5 --first 41 --device cuda --head-sizes 1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("reproduce: cuflash check --seed 5 --only 40 --device cuda --head-sizes 1"),
            std::string::npos)
      << outcome.err;
}

TEST_F(Commands, check_forever_can_repeat_its_problems) {
  testing::internal::CaptureStdout();
  CheckOptions options;
  options.forever = options.repeat = true, options.minutes = 0.005, options.threads = 1, options.first = 7;
  options.max_growth = 4096;  // sanitizers keep freed memory
  const int code = run_soak(options, 1);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, kExitOk) << out;
  const size_t line = out.find(" problems (seed 1, from 7, the same in every round) against");
  ASSERT_NE(line, std::string::npos) << out;
  EXPECT_GT(std::stoi(out.substr(out.rfind('\n', line) + 1)), 1) << out;
  EXPECT_NE(out.find("resume with: cuflash check --forever --repeat --seed 1 --first 7\n"), std::string::npos) << out;
  EXPECT_EQ(run(dir, "check --repeat").code, kExitUsage);
}

// A leak ends a soak.
TEST_F(Commands, check_forever_sees_memory_that_grows) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<std::vector<char>> leaked;
  std::atomic<bool> ended = false;
  std::thread leak([&] {
    while (!ended && leaked.size() < 400) {
      leaked.emplace_back(kPiece, 'x');
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  CheckOptions options;
  options.forever = true, options.minutes = 5, options.max_growth = 2, options.threads = 1;
  const int code = run_soak(options, 3);
  ended = true;
  leak.join();
  const std::string out = testing::internal::GetCapturedStdout(), err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kExitFailed) << out;
  EXPECT_NE(err.find("resident memory grew by "), std::string::npos) << err;
}

TEST_F(Commands, io_tells_bytes_and_operations_without_a_gpu) {
  const std::string nothing = "LD_LIBRARY_PATH='" + dir.file("") + "'";
  const Outcome outcome = run(dir, "io --head-dim 128 --len 512,1024 --causal --arch sm_80 --json io.json", nothing);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"sm_80", "forward", "backward", "1024", "naive/tiles", "not measured"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in " << outcome.out;
  const std::string json = dir.read("io.json");
  EXPECT_EQ(json.find("{\"format\": \"cuflash-io-1\", \"version\": "), 0u) << json;
  for (const char* member : {"\"direction\": \"forward\", \"len_q\": 1024, \"len_k\": 1024", "\"dram_read\": null",
                             "\"direction\": \"backward\", \"len_q\": 512", "\"causal\": true, \"window\": [-1, -1]"})
    EXPECT_NE(json.find(member), std::string::npos) << member << " in " << json;
  // A tile of 128 queries sees the 64 keys before its first query, and its own: 95 of 2048 tiles are visited.
  EXPECT_NE(run(dir, "io --len 4096 --window 64,0 --arch sm_90a", nothing).out.find("95.4%"), std::string::npos);
  for (const char* flags :
       {"--len 0", "--len 99999999999", "--heads 0", "--batch 1000000 --heads 1000000", "--heads 1000 --len 16000000",
        "--len x", "--json /no/such/place", "--launch sideways", "--launch forward --len 1,2"})
    EXPECT_EQ(run(dir, std::string("io ") + flags, nothing).code, kExitUsage) << flags;
  EXPECT_EQ(run(dir, "io --arch sm_1", nothing).code, kExitUsage);
  EXPECT_EQ(run(dir, "io --head-dim 300", nothing).code, kExitFailed);
}

// A fake profiler: runs its command on a fake GPU, and reports what two kernels moved.
TEST_F(Commands, io_shows_what_ncu_measured) {
  const auto profiler = [&](const std::string& body) {
    std::ofstream(dir.file("ncu")) << "#!/bin/sh\nshift 7\n" << body;
    std::filesystem::permissions(dir.file("ncu"), std::filesystem::perms::owner_all);
  };
  const std::string environment = fake_gpu_environment(dir) + " PATH='" + dir.file("") + "':\"$PATH\"";
  const std::string table =
      "cat <<'END'\n==PROF== Connected\n\"ID\",\"Kernel "
      "Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"lts__t_bytes."
      "sum\"\n\"\",\"\",\"byte\",\"byte\",\"byte\"\n\"0\",\"f(int, \"\"x\"\")\",\"1,000,000\",\"24\",\"7.5\"\n"
      "\"1\",\"g\",\"1\",\"2\",\"3\"\nEND\n";
  const std::string words = "io --len 200 --heads 2 --heads-k 1 --causal --window 5,-1 --json io.json";
  profiler("echo \"$@\" >>commands\n\"$@\" || exit 1\n" + table);
  const Outcome outcome = run(dir, words, environment);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("DRAM by ncu"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("not measured"), std::string::npos) << outcome.out;
  const std::string json = dir.read("io.json"), commands = dir.read("commands");
  EXPECT_NE(json.find("\"dram_read\": 1000001, \"dram_written\": 26, \"l2_bytes\": 10"), std::string::npos) << json;
  EXPECT_NE(commands.find("--launch forward"), std::string::npos) << commands;
  EXPECT_NE(commands.find("--launch backward --dtype bf16 --batch 1 --heads 2 --head-dim 128 --len 200 --heads-k 1 "
                          "--causal --window=5,-1"),
            std::string::npos)
      << commands;

  const auto expect_reason = [&](const std::string& body, const std::string& reason) {
    profiler(body);
    const Outcome failed = run(dir, words, environment);
    EXPECT_EQ(failed.code, kExitOk) << failed.err;
    EXPECT_NE(failed.out.find("not measured: ncu: "), std::string::npos) << failed.out;
    EXPECT_NE(failed.out.find(reason), std::string::npos) << reason << " in " << failed.out;
  };
  expect_reason("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1\n", "ERR_NVGPUCTRPERM");
  expect_reason("exit 3\n", "ended with status");
  expect_reason("exit 0\n", "printed no kernel");
  EXPECT_NE(run(dir, words + " --arch sm_80", environment).out.find("the GPU is sm_90a, not sm_80"), std::string::npos);
}

TEST(Ncu, refuses_what_is_no_table_of_bytes) {
  const std::string head =
      "\"ID\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"lts__t_bytes.sum\"\r\n\"\",\"byte\",\"byte\","
      "\"byte\"\n";
  const Measured measured = measured_in(head + "\"0\",\"1\",\"2\",\"3\"");
  EXPECT_EQ(measured.dram_read + 10 * measured.dram_written + 100 * measured.l2, 321);
  std::string kilobytes = head;
  kilobytes.replace(kilobytes.rfind("byte"), 4, "Kbyte");
  for (const std::string& text :
       {std::string(), head, head + "\"0\",\"1\",\"2\"", head + "\"0\",\"1\",\"2\",\"3\",\"4\"",
        head + "\"0\",\"1\",\"2\",\"n/a\"", head + "\"0\",\"1\",\"2\",\"-3\"", head + "\"0\",\"1\",\"2\",\"1e300\"",
        head + "\"0\",\"1\",\"2\",\"nan\"", head + "\"0\",\"1\",\"2\",\"3", head.substr(30) + "\"0\",\"1\",\"2\",\"3\"",
        kilobytes + "\"0\",\"1\",\"2\",\"3\""})
    EXPECT_THROW(measured_in(text), std::runtime_error) << text;
}

TEST_F(Commands, memory_tells_what_is_saved) {
  const Outcome outcome = run(dir, "memory --len 1024 --arch sm_90a --json memory.json");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("79.9%"), std::string::npos) << outcome.out;
  // Q, K, V; O and LSE; nothing; scores and probabilities of 16 heads.
  EXPECT_NE(dir.read("memory.json")
                .find("\"direction\": \"forward\", \"len_q\": 1024, \"len_k\": 1024, \"inputs\": "
                      "12582912, \"outputs\": 4259840, \"workspace\": 0, \"naive_matrices\": 67108864"),
            std::string::npos);
  EXPECT_NE(run(dir, "memory --len 64").out.find("on cpu"), std::string::npos);
  EXPECT_EQ(run(dir, "memory --len -5").code, kExitUsage);
  EXPECT_EQ(run(dir, "memory --heads 3 --heads-k 2").code, kExitFailed);
}

TEST_F(Commands, demo_is_exact_and_short) {
  const Outcome outcome = run(dir, "demo --max-len 256");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"threads", "f32", "bf16", "dk", "256"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(run(dir, "demo --max-len 0").code, kExitUsage);
}

TEST_F(Commands, a_full_disk_is_an_error) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command = "'" + tool() + "' info >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitUsage);
}

}  // namespace
}  // namespace cuflash::cli
