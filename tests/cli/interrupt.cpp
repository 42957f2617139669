// Ctrl-C: finished results are shown and stored, and the exit code is that of the signal.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "cli/arguments/exit.h"
#include "cli/bench/file.h"
#include "cli/terminal/interrupt.h"
#include "tests/cli/program.h"

namespace cuflash::cli {
namespace {

// "1,2,...,300"
std::string many_batches() {
  std::string list = "1";
  for (int n = 2; n <= 300; ++n) list += "," + std::to_string(n);
  return list;
}

// Runs the program and signals it. A shell without job control ignores SIGINT in its background processes. How much is
// finished by then depends on the machine; if nothing is, the program gets more time.
Outcome interrupted(const test::TempDir& dir, const std::string& words, const std::string& finished,
                    const std::string& signal = "INT", const std::string& environment = "") {
  Outcome outcome{};
  for (const char* seconds : {"2", "8", "32"}) {
    const std::string command = "cd '" + dir.file("") + "' && ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" " +
                                "env --default-signal=INT " + environment + " '" + tool() + "' " + words +
                                " >stdout 2>stderr & sleep " + seconds + "; kill -" + signal + " $!; wait $!";
    const int status = std::system(command.c_str());
    outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, dir.read("stdout"), dir.read("stderr")};
    if (outcome.out.find(finished) != std::string::npos) break;
  }
  EXPECT_NE(outcome.out.find(finished), std::string::npos) << words << ": " << outcome.out << outcome.err;
  return outcome;
}

TEST_F(Commands, bench_keeps_the_points_that_were_measured_before_a_signal) {
  const std::string words = "bench --device cpu --heads 1 --head-dim 8 --len 8 --contestant cuflash --batch " +
                            many_batches() +
                            " --seconds 0.05 --compare old.json --json now.json --csv now.csv --markdown now.md";
  dir.write("old.json", bench_json({}));
  for (const auto& [signal, code] : {std::pair{"INT", 130}, {"TERM", 143}}) {
    const Outcome outcome = interrupted(dir, words, "forward f32 B=1 ", signal);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    const BenchFile file = read_bench_file(dir.file("now.json"));
    ASSERT_GT(file.results.size(), 0u);
    ASSERT_LT(file.results.size(), 300u);
    const std::string count = std::to_string(file.results.size()) + " of 300 points were measured";
    EXPECT_NE(outcome.err.find("cuflash: interrupted: " + count), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("--compare"), std::string::npos) << outcome.err;
    EXPECT_NE(dir.read("now.json").find("\"interrupted\": \"" + count + "\""), std::string::npos);
    EXPECT_NE(dir.read("now.md").find("- interrupted: " + count), std::string::npos);
    const std::string csv = dir.read("now.csv");
    EXPECT_EQ(static_cast<size_t>(std::count(csv.begin(), csv.end(), '\n')), 1 + file.results.size());
    EXPECT_EQ(static_cast<size_t>(std::count(outcome.out.begin(), outcome.out.end(), '\n')), 2 + file.results.size());
  }
}

TEST_F(Commands, check_reports_the_problems_that_were_checked_before_a_signal) {
  const Outcome outcome = interrupted(dir, "check --count 100000 --threads 1 --first 5", " problems (seed 1, from 5)");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  const uint64_t checked = std::stoull(outcome.out);
  EXPECT_NE(outcome.err.find("interrupted: " + std::to_string(checked) +
                             " of 100000 problems were checked; continue with --first " + std::to_string(5 + checked)),
            std::string::npos)
      << outcome.err;
}

TEST_F(Commands, tune_keeps_what_it_found_before_a_signal) {
  const Outcome outcome = interrupted(
      dir, "tune --device cpu --heads 1 --head-dim 8 --len 64 --seconds 60 --threads 1 --batch " + many_batches(),
      "problems now have a faster choice", "INT", "CUFLASH_CACHE_DIR=cache CUFLASH_TUNED=on");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find(" of 300 problems were searched and stored"), std::string::npos) << outcome.err;
  EXPECT_TRUE(dir.has("cache/tuned.txt"));
}

TEST(Interruption, is_seen_only_while_a_command_asks_for_it) {
  EXPECT_NO_THROW(stop_if_asked());
  const auto before = ::signal(SIGINT, SIG_DFL);
  {
    const AskedToEnd asked;
    EXPECT_FALSE(asked);
    ::raise(SIGINT);
    EXPECT_TRUE(asked);
    EXPECT_EQ(asked.exit_code(), 130);
    EXPECT_THROW(stop_if_asked(), Interrupted);
  }
  EXPECT_NO_THROW(stop_if_asked());
  ::signal(SIGINT, before);
}

TEST(Interruption, that_is_ignored_stays_so) {
  const auto before = ::signal(SIGINT, SIG_IGN);
  {
    const AskedToEnd asked;
    ::raise(SIGINT);
    EXPECT_FALSE(asked);
  }
  EXPECT_EQ(::signal(SIGINT, before), SIG_IGN);
}

}  // namespace
}  // namespace cuflash::cli
