// `cuflash bench`: its grid, its file, its comparison, and the command as a program.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "cli/arguments/exit.h"
#include "cli/bench/grid.h"
#include "cli/bench/measure.h"
#include "cli/bench/report.h"
#include "cuda/jit/binaries.h"
#include "cuda/jit/compile.h"
#include "files/error.h"
#include "tests/cli/program.h"
#include "tests/cuda/jit/nvrtc.h"

namespace cuflash::cli {
namespace {

BenchFile some_results() {
  BenchFile file;
  file.command = "cuflash bench \"x\"\n", file.version = "1", file.date = "2026-01-02T03:04:05Z", file.cpu = "a cpu";
  file.ceilings["cpu"]["f32_tflops"] = 0.25;
  BenchResult result;
  result.contestant = kCuflash;
  result.point = {"cpu", kForward, "f32", 2, 4, 2, 5, 7, 16, 8, true, 0};
  result.ms = 1.5, result.ms_low = 1.25, result.ms_high = 2, result.tflops = 1e-9, result.extra_bytes = 3e9;
  file.results = {result, result};
  file.results[1].contestant = kNaive, file.results[1].ms = 1.75;
  return file;
}

TEST(BenchFiles, are_read_as_they_were_written) {
  BenchFile file = some_results();
  const std::string json = bench_json(file);
  const BenchFile read = parse_bench_json(json);
  EXPECT_EQ(bench_json(read), json);
  EXPECT_EQ(read.command, file.command);
  EXPECT_EQ(read.gpu, std::nullopt);
  ASSERT_EQ(read.results.size(), 2u);
  EXPECT_EQ(read.results[0].point, file.results[0].point);
  EXPECT_EQ(read.results[1].ms, 1.75);
  EXPECT_EQ(read.results[0].share, std::nullopt);
  EXPECT_NE(json.find("\"extra_bytes\": 3000000000}"), std::string::npos) << json;
  // Members of later versions are skipped.
  const std::string extended =
      "{\"new\": [{\"a\": [1, -2.5e3], \"b\": {}}, [], null, true, \"\\u00e9]\"], " + json.substr(1);
  EXPECT_EQ(bench_json(parse_bench_json(extended)), json);
  file.gpu = "a gpu", file.results.clear();
  EXPECT_EQ(parse_bench_json(bench_json(file)).gpu, "a gpu");
}

TEST(BenchFiles, that_are_broken_are_refused) {
  const std::string json = bench_json(some_results());
  for (size_t length = 0; length + 2 < json.size(); ++length)
    EXPECT_THROW(parse_bench_json(json.substr(0, length)), files::FileError) << length;
  for (const auto& [from, to, reason] : std::initializer_list<std::tuple<const char*, const char*, const char*>>{
           {"cuflash-bench-1", "other", "its format is 'other'"},
           {"\"ms\": 1.5", "\"ms\": 0", "ms must be larger than 0"},
           {"\"ms\": 1.5", "\"ms\": -1", "ms must be larger than 0"},
           {"\"ms\": 1.5", "\"ms\": nan", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": 1e999", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": \"1.5\"", "ms must be a number"},
           {"\"ms\": 1.5", "\"ms\": 9", "in this order"},
           {"\"ms\": 1.5", "\"ns\": 1.5", "no member 'ms'"},
           {"\"ms\": 1.5", "\"ms\": 1.5, \"ms\": 1.5", "occurs twice"},
           {"\"batch\": 2", "\"batch\": 2.5", "whole number"},
           {"\"batch\": 2", "\"batch\": 99999999999999999999", "63 bits"},
           {"\"share\": null", "\"share\": -1", "share is negative"},
           {"\"causal\": true", "\"causal\": 1", "true or false"},
           {"\"threads\": 1", "\"threads\": {", "number"},
           {"\"results\": [", "\"results\": {", "before the results"},
           {"a cpu", "a \xff", "UTF-8"},
           {"]}\n", "]} {}", "text after"}}) {
    std::string broken = json;
    ASSERT_NE(broken.find(from), std::string::npos) << from;
    broken.replace(broken.find(from), std::strlen(from), to);
    try {
      parse_bench_json(broken);
      ADD_FAILURE() << to << " was accepted";
    } catch (const files::FileError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << to << ": " << error.what();
    }
  }
}

TEST(BenchComparison, is_slower_beyond_tolerance_and_noise_alone) {
  const BenchFile old_file = some_results();
  const auto slower = [&](double ms, double ms_low, double tolerance) {
    BenchFile now = old_file;
    for (BenchResult& result : now.results) result.ms = ms, result.ms_low = ms_low, result.ms_high = 2 * ms;
    const Comparison comparison = compare(old_file, now, tolerance);
    EXPECT_EQ(comparison.matched, 2u);
    return comparison.slower;
  };
  EXPECT_EQ(slower(1.5, 1.25, 0.05), 0u);
  EXPECT_EQ(slower(2.2, 2.1, 0.05), 1u) << "cuflash's, and not that of naive";
  EXPECT_EQ(slower(2.2, 1.9, 0.05), 0u) << "the middle halves overlap";
  EXPECT_EQ(slower(2.2, 2.1, 0.5), 0u) << "within the tolerance";
  BenchFile other = old_file;
  other.results[0].point.len_k = 8;
  EXPECT_EQ(compare(old_file, other, 0.05).matched, 1u);
  EXPECT_EQ(compare(old_file, other, 0.05).missing, 1u);
}

TEST(BenchGrid, has_every_combination_once) {
  BenchOptions options;
  options.preset = "paper";
  const auto paper = bench_grid(options, "cuda");
  EXPECT_EQ(paper.size(), 2u * 3 * 2 * 6);
  for (const BenchPoint& point : paper) {
    EXPECT_EQ(point.batch * point.len_k, 16384);
    EXPECT_EQ(point.heads_q * point.head_dim, 2048);
    EXPECT_EQ(point.dtype, "bf16");
  }
  options.preset = "training";
  EXPECT_EQ(bench_grid(options, "cpu").size(), 2u * 4 * 4 * 4);
  options.preset = "decode", options.len = {100, 100}, options.batch = {3};
  const auto decode = bench_grid(options, "cpu");
  ASSERT_EQ(decode.size(), 2u);  // flags override the preset, and a length given twice counts once
  EXPECT_EQ(decode[1], (BenchPoint{"cpu", kDecode, "f32", 3, 32, 8, 1, 100, 128, 128, false, 64}));
  EXPECT_EQ(key_value_bytes(decode[1]), 3.0 * 8 * 100 * 256 * 4);

  BenchPoint point{"cpu", kForward, "f32", 2, 3, 3, 10, 10, 8, 8, false, 0};
  EXPECT_EQ(useful_operations(point), 4.0 * 2 * 3 * 10 * 10 * 8);
  point.causal = true, point.direction = kBackward;
  EXPECT_EQ(useful_operations(point), 2.5 * 2 * 2 * 3 * 10 * 10 * 8);
  point.len_q = 4;
  EXPECT_EQ(useful_operations(point), 2.5 * 4 * 2 * 3 * (4 * 10 - 8) * 8);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.25), 1.75);
  EXPECT_EQ(quantile({5}, 0.75), 5);
}

TEST_F(Commands, bench_measures_stores_and_compares) {
  const std::string grid =
      "bench --device cpu --direction forward,backward,decode --len 9 --heads 2 --head-dim 8 --page-size 0,4 "
      "--dtype f32,bf16 --causal 1 --seconds 0.001 --threads 2 ";
  const Outcome outcome = run(dir, grid + "--json now.json --csv now.csv --markdown now.md");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const BenchFile file = read_bench_file(dir.file("now.json"));
  ASSERT_EQ(file.results.size(), 2u * (4 + 3));  // naive has no pages
  for (const BenchResult& result : file.results) {
    EXPECT_LE(result.ms_low, result.ms);
    EXPECT_EQ(result.gbs.has_value(), result.point.direction == kDecode);
    EXPECT_GT(result.extra_bytes.value_or(0), 0) << point_text(result.point);
  }
  EXPECT_EQ(file.command.substr(0, 27), "cuflash bench --device cpu ");
  EXPECT_GT(file.ceilings.at("cpu").at("read_gbs"), 0);
  EXPECT_EQ(std::count_if(outcome.out.begin(), outcome.out.end(), [](char c) { return c == '\n'; }),
            1 + 14 + static_cast<int64_t>(file.ceilings.at("cpu").size()));
  const std::string csv = dir.read("now.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 15);
  EXPECT_NE(dir.read("now.md").find("| problem |"), std::string::npos);

  const Outcome same = run(dir, grid + "--contestant cuflash --compare now.json --tolerance 100");
  EXPECT_EQ(same.code, kExitOk) << same.err;
  EXPECT_NE(same.out.find("8 points compared, 0 slower"), std::string::npos) << same.out;
  BenchFile fast = file;
  for (BenchResult& result : fast.results) result.ms_low = result.ms = result.ms_high = 1e-9;
  dir.write("fast.json", bench_json(fast));
  const Outcome slower = run(dir, grid + "--contestant cuflash --compare fast.json");
  EXPECT_EQ(slower.code, kExitFailed) << slower.err;
  EXPECT_NE(slower.out.find("8 slower by more than 5%"), std::string::npos) << slower.out;
  EXPECT_EQ(run(dir, "bench --len 3 --seconds 0.001 --compare now.json").code, kExitUsage);
}

// The test uses f32, which does not need cuBLAS: a real cuBLAS may crash on a fake driver.
TEST_F(Commands, bench_measures_on_a_gpu) {
  const std::string environment = "LD_LIBRARY_PATH=" CUFLASH_FAKE_GPU_PATH " CUFLASH_CACHE_DIR=cache";
  const Outcome outcome =
      run(dir,
          "bench --direction forward,backward,decode --len 64 --head-dim 64 --page-size 0,16 --dtype f32 "
          "--seconds 0.001 --json now.json",
          environment);
  ASSERT_EQ(outcome.code, kExitOk) << outcome.err;
  const BenchFile file = read_bench_file(dir.file("now.json"));
  ASSERT_EQ(file.results.size(), 4u);
  EXPECT_EQ(file.gpu, "Fake");
  EXPECT_GT(file.ceilings.at("cuda").at("read_gbs"), 0);
  EXPECT_EQ(file.results[0].point.device, "cuda");
  EXPECT_EQ(file.results[0].extra_bytes, 0);
  EXPECT_GT(file.results[1].extra_bytes, 0) << "backward needs a workspace";
  EXPECT_EQ(run(dir, "bench --contestant naive", environment).code, kExitUsage);
}

TEST(BenchClock, is_counted_by_a_kernel_that_compiles) {
  CUFLASH_NEEDS_NVRTC();
  cuda::Program program;
  program.name = "clock", program.arch = cuda::arch_named("sm_90a"), program.source = kClockSource;
  const cuda::Compiled compiled = cuda::compile(program);
  EXPECT_EQ(compiled.cubin.substr(1, 3), "ELF");
  EXPECT_NE(compiled.cubin.find(cuda::kEntryName), std::string::npos);
  EXPECT_EQ(cuda::read_use(compiled.log).warnings, std::vector<std::string>{});
}

TEST_F(Commands, bench_fails_with_one_sentence_and_no_file) {
  dir.write("foreign.json", "{\"format\": 1}");
  for (const auto& [words, code, reason] : std::initializer_list<std::tuple<const char*, int, const char*>>{
           {"--len 0", kExitUsage, "--len is 0"},
           {"--len 99999999999", kExitUsage, "--len is 99999999999"},
           {"--causal 2", kExitUsage, "--causal is '2'"},
           {"--hidden 100", kExitUsage, "--hidden 100 is not a multiple"},
           {"--heads 4 --hidden 64", kExitUsage, "excludes"},
           {"--heads-k 3", kExitUsage, "--heads-k 3 does not divide"},
           {"--preset fast", kExitUsage, "--preset"},
           {"--direction sideways", kExitUsage, "--direction"},
           {"--seconds 0", kExitUsage, "--seconds is 0"},
           {"--tolerance -1 --compare foreign.json", kExitUsage, "--tolerance is -1"},
           {"--compare foreign.json", kExitUsage, "cannot read 'foreign.json'"},
           {"--compare missing.json", kExitUsage, "No such file"},
           {"--json nowhere/x", kExitUsage, "nowhere"},
           {"--json x --csv ./x", kExitUsage, "two outputs"},
           {"--device cuda", kExitFailed, "cuda"}}) {
    const Outcome outcome = run(dir, std::string("bench ") + words + (words[2] == 'j' ? "" : " --json x"));
    EXPECT_EQ(outcome.code, code) << words << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
    EXPECT_FALSE(dir.has("x")) << words;
  }
  const Outcome huge = run(dir, "bench --device cpu --batch 100000 --heads 100000 --len 100000 --json x");
  EXPECT_EQ(huge.code, kExitFailed);
  EXPECT_NE(huge.err.find("left out"), std::string::npos) << huge.err;
  EXPECT_FALSE(dir.has("x"));
}

}  // namespace
}  // namespace cuflash::cli
