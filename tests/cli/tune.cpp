// `cuflash tune`: its candidates, its trials, and the command as a program.
#include <gtest/gtest.h>

#include <map>

#include "cli/arguments/exit.h"
#include "cli/bench/grid.h"
#include "cli/tune/option_sets.h"
#include "cli/tune/search.h"
#include "cpu/plan/tuned_tile.h"
#include "tests/cli/program.h"
#include "tuned/table.h"

namespace cuflash::cli {
namespace {

const std::string kHere = "CUFLASH_CACHE_DIR=cache CUFLASH_TUNED=on ";

TEST_F(Commands, tune_searches_checks_times_and_stores) {
  const Outcome outcome = run(dir,
                              "tune --device cpu --direction decode,forward,backward --len 70 --heads 2 --head-dim 8 "
                              "--causal 1 --dtype bf16 --seconds 1.2 --threads 2 --csv times.csv",
                              kHere);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  for (const char* word : {"forward bf16 B=1 H=2 S=70 D=8 causal", "backward bf16", "of 2 problems", "cache/tuned.txt"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << "\n" << outcome.out;
  EXPECT_NE(outcome.err.find("decode bf16 B=1 H=2 S=1x70 D=8 causal: nothing to choose"), std::string::npos)
      << outcome.err;
  const std::string csv = dir.read("times.csv");
  for (const char* words :
       {"# cuflash tune --device cpu", ", kernels ", "\ndirection,dtype,",
        "\nforward,bf16,1,2,2,70,70,8,8,1,\"none\",cpu tile_q=", "\nbackward,bf16,", ",\"built in\"\n"})
    EXPECT_NE(csv.find(words), std::string::npos) << words << "\n" << csv;
  const tuned::Table table = tuned::read_table(dir.file("cache"));
  EXPECT_EQ(table.state, "");
  EXPECT_TRUE(dir.has("cache/tuned.txt"));
  EXPECT_LE(count(table.devices), 2u);
}

TEST_F(Commands, tuned_choices_reach_calls_of_this_machine) {
  const tuned::Kind kind{tuned::Direction::forward, DType::f32, tuned::Mask::none, 64, 64, 512, 512, 0, 1, 0};
  const std::string name = cpu::tuned_name();
  ASSERT_EQ(tuned::write_choices(dir.file("cache"), name, {{kind, {{"cpu", 64, 128}, 5}}}), "");
  const std::string problem = "explain --len 400 --device cpu";
  EXPECT_NE(run(dir, problem, kHere).out.find("64 queries x 128 keys, tuned"), std::string::npos);
  for (const char* other :
       {" --len 600", " --head-dim 32", " --softcap 3", " --causal", " --dtype bf16", " --backward"})
    EXPECT_EQ(run(dir, "explain --device cpu" + std::string(other), kHere).out.find("tuned"), std::string::npos)
        << other;
  EXPECT_EQ(run(dir, problem, "CUFLASH_CACHE_DIR=cache CUFLASH_TUNED=off").out.find("tuned"), std::string::npos);
  EXPECT_NE(run(dir, "info", "CUFLASH_CACHE_DIR=cache CUFLASH_TUNED=off").out.find("CUFLASH_TUNED=off"),
            std::string::npos);
  const Outcome wrong = run(dir, problem, "CUFLASH_CACHE_DIR=cache CUFLASH_TUNED=perhaps");
  EXPECT_NE(wrong.err.find("CUFLASH_TUNED: is 'perhaps', must be on or off"), std::string::npos) << wrong.err;
  EXPECT_NE(run(dir, "info", kHere).out.find("1 choices for 1 devices"), std::string::npos);
  const Outcome listed = run(dir, "cache list", kHere);
  EXPECT_NE(listed.out.find("tile_q=64 tile_k=128, saves 5%"), std::string::npos) << listed.out;
  EXPECT_NE(run(dir, "check --count 20 --seed 5", kHere).out.find("0 failed"), std::string::npos);

  dir.write("cache/tuned.txt", dir.read("cache/tuned.txt") + "more\n");
  EXPECT_EQ(run(dir, problem, kHere).out.find("tuned"), std::string::npos);
  EXPECT_NE(run(dir, "info", kHere).out.find("is damaged: its checksum is wrong"), std::string::npos);
  EXPECT_EQ(run(dir, "cache clear", kHere).code, kExitOk);
  EXPECT_FALSE(dir.has("cache/tuned.txt"));
}

TEST_F(Commands, tuned_choices_reach_calls_on_a_gpu) {
  const tuned::Kind kind{tuned::Direction::forward, DType::bf16, tuned::Mask::none, 64, 64, 1024, 1024, 8, 1, 0};
  tuned::Choice choice{"sm90", 0, 96};
  choice.warpgroups = 2, choice.stages = 3, choice.schedule = 1;
  ASSERT_EQ(tuned::write_choices(dir.file("cache"), "Fake, sm_90a, 132 multiprocessors", {{kind, {choice, 5}}}), "");
  const std::string environment = fake_gpu_environment(dir) + " CUFLASH_TUNED=",
                    problem = "explain --dtype bf16 --len 1000 ";
  const Outcome outcome = run(dir, problem + "--device cuda", environment + "on");
  EXPECT_NE(outcome.out.find("that cuflash tune found"), std::string::npos) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("tiles of 128 queries x 96 keys"), std::string::npos) << outcome.out;
  for (const std::string& other : {problem + "--device cuda --causal", problem + "--device cuda --backward",
                                   problem + "--device cuda --heads 9", problem + "--arch sm_90a"})
    EXPECT_EQ(run(dir, other, environment + "on").out.find("cuflash tune"), std::string::npos) << other;
  for (const char* off : {"off", "on CUFLASH_JIT=off", "on CUFLASH_CUDA_KERNELS=portable"})
    EXPECT_EQ(run(dir, problem + "--device cuda", environment + off).out.find("cuflash tune"), std::string::npos)
        << off;
}

TEST_F(Commands, tune_shows_what_it_would_try_without_a_gpu) {
  for (const auto& [words, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {"--arch sm_90a --head-dim 128", "needs about 166 registers, there are 160"},
           {"--arch sm_89 --head-dim 128", "needs 104448 bytes of shared memory, there are 101376"},
           {"--arch sm_80 --head-dim 256 --direction backward", "built in"},
           {"--arch sm_90a --option softcap,alibi dropout", "D=64 softcap,alibi on sm_90a"},
           {"--arch sm_90a --option softcap,alibi --option none", "S=2048 D=64 on sm_90a"},
           {"--arch sm_90a --all-options --len 512", "D=64 mask,dropout on sm_90a"},
           {"--arch sm_90a --option sinks --direction backward", "D=64 sinks on sm_90a"},
           {"--arch sm_90a --preset decode --len 16384 --batch 8", "splits=16"},
           {"--device cpu --len 4096", "tile_q=256 tile_k=256"},
           {"--device cpu --direction decode", "nothing to choose"}}) {
    const Outcome outcome = run(dir, std::string("tune --dry-run ") + words, kHere);
    EXPECT_EQ(outcome.code, kExitOk) << words << ": " << outcome.err;
    EXPECT_NE(outcome.out.find(expected), std::string::npos) << words << "\n" << outcome.out;
  }
  EXPECT_FALSE(dir.has("cache"));
}

TEST_F(Commands, tune_fails_with_one_sentence_and_no_file) {
  for (const auto& [words, code, reason] : std::initializer_list<std::tuple<const char*, int, const char*>>{
           {"--seconds 0", kExitUsage, "--seconds is 0"},
           {"--len 0", kExitUsage, "--len is 0"},
           {"--arch sm_90a", kExitUsage, "--dry-run"},
           {"--compile", kExitUsage, "--dry-run"},
           {"--option bias,colour", kExitUsage, "softcap,alibi,bias,mask,dropout,sinks"},
           {"--option bias,", kExitUsage, "'bias,'"},
           {"--option bias --all-options", kExitUsage, "--all-options"},
           {"--device cpu --option bias", kExitUsage, "on CUDA"},
           {"--device cpu --all-options", kExitUsage, "on CUDA"},
           {"--dry-run --arch sm_90a --direction decode --option alibi", kExitUsage, "forward and backward"},
           {"--device cpu --len 16 --csv nowhere/times.csv", kExitUsage, "nowhere"},
           {"--dry-run --arch sm_70", kExitUsage, "sm_80, sm_86"},
           {"--dry-run --arch sm_80 --device cpu", kExitUsage, "leave it out with --device cpu"},
           {"--device cpu --direction decode", kExitUsage, "nothing was measured"},
           {"--device cuda", kExitFailed, "cuda"}}) {
    const Outcome outcome = run(dir, std::string("tune ") + words, kHere);
    EXPECT_EQ(outcome.code, code) << words << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_FALSE(dir.has("cache/tuned.txt")) << words;
  }
  EXPECT_EQ(run(dir, "tune --device cpu --len 16", "CUFLASH_CACHE_DIR=/proc/cuflash").code, kExitUsage);
  // A GPU that computes nothing: results are checked before they are timed.
  const Outcome fake =
      run(dir, "tune --device cuda --len 64 --dtype f32 --seconds 1", fake_gpu_environment(dir) + " CUFLASH_TUNED=on");
  EXPECT_EQ(fake.code, kExitFailed) << fake.out;
  EXPECT_NE(fake.err.find("the built-in choice portable"), std::string::npos) << fake.err;
  EXPECT_FALSE(dir.has("cache/tuned.txt"));
}

TEST(TuneCandidates, are_what_the_plan_would_take_and_what_is_near) {
  const BenchPoint point{"cuda", kForward, "bf16", 4, 16, 16, 4096, 4096, 128, 128, false, 0};
  const TuneTarget hopper{false, cuda::arch_named("sm_90a"), 132};
  for (const char* direction : {kForward, kBackward, kDecode}) {
    BenchPoint p = point;
    p.direction = direction;
    if (p.direction == kDecode) p.len_q = 1;
    const std::vector<Candidate> all = candidates_of(p, hopper);
    ASSERT_GT(all.size(), 5u) << direction;
    EXPECT_TRUE(all[0].built_in);
    EXPECT_EQ(launch_of(p, hopper, all[0].choice).kernel, launch_of(p, hopper, {}).kernel) << direction;
    size_t tried = 0;
    for (const Candidate& candidate : all) {
      if (!candidate.rejected.empty()) continue;
      ++tried;
      const bool other = !(launch_of(p, hopper, candidate.choice).kernel == launch_of(p, hopper, {}).kernel);
      EXPECT_EQ(other, !candidate.built_in && candidate.choice.splits == 0)
          << direction << " " << to_string(candidate.choice);
    }
    // Next to the sums of dQ there is room for two or three stages, and for no other number of warpgroups.
    EXPECT_GT(tried, p.direction == kBackward ? 1u : 3u) << direction;
  }
}

// Every set has a config for which the estimate finds registers, in each kind of softmax that it may have.
TEST(TuneCandidates, with_options_are_the_largest_tiles_that_fit) {
  const TuneTarget hopper{false, cuda::arch_named("sm_90a"), 132};
  for (const int options : usual_option_sets())
    for (const int64_t dim : {64, 128, 256}) {
      const BenchPoint p{"cuda", kForward, "bf16", 1, 33, 33, 3072, 3072, dim, dim, false, 0, options};
      const std::vector<Candidate> all = candidates_of(p, hopper);
      EXPECT_TRUE(all[0].built_in);
      EXPECT_LE(all.size(), 1u + 2 * 3 * 3) << option_set_text(options) << " " << dim;
      std::map<std::pair<int, int>, int> tiles;  // by warpgroups and schedule
      for (const Candidate& candidate : all) {
        EXPECT_EQ(candidate.rejected, "") << to_string(candidate.choice);
        if (!candidate.built_in) ++tiles[{candidate.choice.warpgroups, candidate.choice.schedule & kFirstMax}];
      }
      for (const auto& [kind, count] : tiles) EXPECT_LE(count, 3) << option_set_text(options) << " " << dim;
      EXPECT_EQ(kind_of(p, hopper).options, options);
    }
  EXPECT_EQ(option_set("--option", "none"), 0);
  EXPECT_EQ(option_set_text(0), "none");
  for (const int options : usual_option_sets()) EXPECT_EQ(option_set("--option", option_set_text(options)), options);
}

TEST(TuneSearches, take_what_is_clearly_faster) {
  const std::vector<double> built_in{10, 10, 10, 11};
  EXPECT_EQ(fastest_of({built_in}), 0u);
  EXPECT_EQ(fastest_of({built_in, {9, 9, 9}, {8, 8, 8}, {8.5, 8.5, 8.5}}), 2u);
  EXPECT_EQ(fastest_of({built_in, {9.9, 9.9, 9.9}}), 0u) << "one percent";
  EXPECT_EQ(fastest_of({built_in, {1, 9, 12, 12}}), 0u) << "noise";
  EXPECT_EQ(fastest_of({built_in, {12, 12, 12}}), 0u);
  const std::vector<double> busy{10, 20, 10, 20};  // rounds on a busy machine
  EXPECT_EQ(fastest_of({busy, {9, 18, 9, 18}}), 1u);
  EXPECT_EQ(fastest_of({busy, {10, 20, 10, 19}}), 0u);
  EXPECT_EQ(ratios_to(busy, {5, 5, 5, 5}), (std::vector<double>{0.5, 0.25, 0.5, 0.25}));
  EXPECT_EQ(ratios_to(busy, {30}), (std::vector<double>{2}));
}

TEST(TuneTrials, compute_with_the_candidate_and_see_what_is_wrong) {
  const BenchPoint point{"cpu", kForward, "f32", 1, 2, 2, 300, 300, 16, 16, true, 0};
  const std::vector<Candidate> all = candidates_of(point, {});
  ASSERT_GT(all.size(), 2u);
  Trial trial(point, nullptr, 1);
  for (const Candidate& candidate : {all[0], all[1], all.back()}) EXPECT_EQ(trial.fault(candidate), "");
  EXPECT_GT(trial.first_time(all[1]), 0);
  const auto times = trial.times({&all[0], &all[1]}, 0.001);
  ASSERT_EQ(times.size(), 2u);
  BenchPoint decode = point;  // its cache is checked like that of a GPU
  decode.direction = kDecode, decode.len_q = 1, decode.batch = 2;
  for (const int64_t page_size : {0, 16}) {
    decode.page_size = page_size;
    EXPECT_EQ(Trial(decode, nullptr, 1).fault(all[0]), "") << page_size;
  }
  EXPECT_GE(times[0].size(), 3u);
}

}  // namespace
}  // namespace cuflash::cli
