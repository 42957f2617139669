// The command line: suggestions for misspelt words, the meaning of values, and one sentence for a wrong value of every flag of
// every command.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>

#include "cli/arguments/arguments.h"
#include "cli/arguments/exit.h"
#include "cli/arguments/nearest.h"
#include "cli/arguments/values.h"
#include "cli/bench/file.h"
#include "tests/cli/program.h"

namespace cuflash::cli {
namespace {

// The tool must fail with kExitUsage and one sentence that contains `reason`.
void expect_refused(const test::TempDir& dir, const std::string& words, const std::string& reason) {
  const Outcome outcome = run(dir, words);
  EXPECT_EQ(outcome.code, kExitUsage) << words << ": " << outcome.out << outcome.err;
  EXPECT_NE(outcome.err.find(reason), std::string::npos) << words << ": " << outcome.err;
  EXPECT_EQ(outcome.err.find("cuflash: "), 0u) << words << ": " << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << words << ": " << outcome.err;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Nearest, counts_inserted_missing_wrong_and_swapped_letters) {
  EXPECT_EQ(edit_distance("bench", "bench"), 0u);
  EXPECT_EQ(edit_distance("bnech", "bench"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("hed-dim", "head-dim"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
  EXPECT_EQ(edit_distance("abcd", "dcba"), 3u);
}

TEST(Nearest, is_a_word_that_may_be_meant_and_no_other) {
  const std::vector<std::string> known{"--head-dim", "--heads", "--len", "io", "-h"};
  for (const auto& [word, expected] :
       std::initializer_list<std::pair<const char*, const char*>>{{"--hed-dim", "--head-dim"},
                                                                  {"--headdim", "--head-dim"},
                                                                  {"--head", "--heads"},
                                                                  {"--lne", "--len"},
                                                                  {"oi", "io"},
                                                                  {"--head-dmi", "--head-dim"},
                                                                  {"--length", "--len"},
                                                                  {"--seqlens", "--len"},
                                                                  {"--num-heads", "--heads"},
                                                                  {"--width", ""},
                                                                  {"-x", ""},
                                                                  {"--", ""},
                                                                  {"", ""}})
    EXPECT_EQ(nearest(word, known), expected) << word;
  EXPECT_EQ(nearest("--" + std::string(100000, 'l'), known), "");
}

TEST(Values, every_usual_name_of_a_type_is_known) {
  for (const auto& [type, names] :
       std::map<DType, std::vector<std::string>>{{DType::f16, {"f16", "fp16", "float16", "half", "FP16", "Half"}},
                                                 {DType::bf16, {"bf16", "bfloat16", "BF16", "BFloat16"}},
                                                 {DType::f32, {"f32", "fp32", "float32", "float", "single", "Float"}},
                                                 {DType::f64, {"f64", "fp64", "float64", "double", "DOUBLE"}}})
    for (const std::string& name : names) EXPECT_EQ(dtype_named("--dtype", name), type) << name;
  for (const char* name : {"int8", "", "3", "f", "fp8", "f16 ", "bfloat"}) {
    const std::string message = refusal([&] { dtype_named("--dtype", name); });
    for (const char* word : {"--dtype is '", "f16", "bf16", "f32", "f64", "half", "bfloat16", "double"})
      EXPECT_NE(message.find(word), std::string::npos) << name << ": " << message;
    EXPECT_EQ(message.find("->"), std::string::npos) << message;
  }
}

TEST(Values, numbers_are_read_whole_or_refused) {
  EXPECT_EQ(whole_number("--x", "-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(whole_number("--x", "7", 7, 7), 7);
  EXPECT_EQ(unsigned_number("--x", "18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(decimal("--x", "-1.5e3"), -1500);
  for (const char* text : {"", "abc", "1.5", "1e3", " 1", "1 ", "0x10", "8", "-1", "99999999999999999999", "1,2"}) {
    const std::string message = refusal([&] { whole_number("--x", text, 0, 7); });
    EXPECT_NE(message.find("must be a whole number from 0 to 7"), std::string::npos) << text << ": " << message;
  }
  for (const char* text : {"-1", "18446744073709551616", "x"})
    EXPECT_NE(refusal([&] { unsigned_number("--x", text); }), "") << text;
  for (const char* text : {"", "x", "1.5.2", "1s"}) EXPECT_NE(refusal([&] { decimal("--x", text); }), "") << text;
  EXPECT_EQ(window_sides("--x", {"-1,3"}), (std::pair<int64_t, int64_t>{-1, 3}));
  EXPECT_EQ(window_sides("--x", {"4", "0"}), (std::pair<int64_t, int64_t>{4, 0}));
  for (const Words& words : {Words{"3"}, {"1,2,3"}, {"1", "2", "3"}, {""}})
    EXPECT_NE(refusal([&] { window_sides("--x", words); }).find("must be two numbers L,R"), std::string::npos);
  EXPECT_EQ(parts_of({"1,2", "3", "", "4,"}), (Words{"1", "2", "3", "", "4", ""}));
  EXPECT_EQ(refusal([] { refuse_choice("--x", "d", Words{"a", "b", "c"}); }), "--x is 'd', must be a, b or c");
}

CommandShape some_program() {
  CommandShape program{"cuflash"};
  program.flags = {{{"--help", "-h"}}};
  CommandShape bench{"bench"}, cache{"cache"};
  bench.flags = {{{"--help", "-h"}}, {{"--len"}, true, true},        {{"--head-dim"}, true, true},
                 {{"--json"}, true}, {{"--out", "-o"}, true},        {{"--scale"}, true},
                 {{"--quick"}},      {{"--causal"}, true, true, "1"}};
  cache.commands = {{"list"}, {"clear"}};
  program.commands = {bench, cache};
  return program;
}

TEST(ArgumentsOfTheProgram, are_what_was_typed_with_newer_names_and_no_value_left_out) {
  for (const auto& [typed, expected] : std::initializer_list<std::pair<Words, Words>>{
           {{"bench", "--len", "1", "2", "--quick"}, {"bench", "--len", "1", "2", "--quick"}},
           {{"bench", "--causal", "--len", "128"}, {"bench", "--causal=1", "--len", "128"}},
           {{"bench", "--causal"}, {"bench", "--causal=1"}},
           {{"bench", "--causal", "0,1", "--quick"}, {"bench", "--causal", "0,1", "--quick"}},
           {{"bench", "--causal=0"}, {"bench", "--causal=0"}},
           {{"bench", "--scale", "-1.5"}, {"bench", "--scale", "-1.5"}},
           {{"bench", "--json=--len"}, {"bench", "--json=--len"}},
           {{"bench", "--json=", "--quick"}, {"bench", "--json", "", "--quick"}},
           {{"bench", "-ofile"}, {"bench", "-ofile"}},
           {{"bench", "-o", "file"}, {"bench", "-o", "file"}},
           {{"bench", "--len", "1", "--len", "2"}, {"bench", "--len", "1", "--len", "2"}},
           {{"bench", "--seq-q", "1", "--dim=8"}, {"bench", "--len", "1", "--head-dim=8"}},
           {{"cache", "list"}, {"cache", "list"}},
           {{"cache", "--help"}, {"cache", "--help"}},
           {{"--help"}, {"--help"}}}) {
    CommandShape program = some_program();
    program.commands[1].flags = program.flags;
    EXPECT_EQ(read_arguments(program, typed).words, expected);
  }
  const Arguments renamed = read_arguments(some_program(), {"bench", "--seq-q", "1"});
  EXPECT_EQ(renamed.command, "cuflash bench");
  EXPECT_EQ(renamed.renamed, (std::vector<std::pair<std::string, std::string>>{{"--seq-q", "--len"}}));
}

TEST(ArgumentsOfTheProgram, that_are_wrong_are_refused_with_a_way_out) {
  for (const auto& [typed, reason] : std::initializer_list<std::pair<Words, const char*>>{
           {{}, "a command is needed: bench or cache"},
           {{"bnech"}, "unknown command 'bnech'; did you mean 'bench'?"},
           {{"help"}, "unknown command 'help'; did you mean '--help'?"},
           {{"other"}, "unknown command 'other'; it may be bench or cache"},
           {{"cache"}, "cuflash cache needs one of: list or clear"},
           {{"cache", "lsit"}, "unknown command 'lsit' of cuflash cache; did you mean 'list'?"},
           {{"bench", "--hed-dim", "3"}, "unknown flag '--hed-dim' of cuflash bench; did you mean '--head-dim'?"},
           {{"bench", "--sideways"}, "unknown flag '--sideways' of cuflash bench; cuflash bench --help lists"},
           {{"bench", "--max-seq", "3"}, "unknown flag '--max-seq'"},
           {{"bench", "x"}, "cuflash bench takes only flags, but got 'x'"},
           {{"bench", "--json", "a", "b"}, "takes only flags, but got 'b'"},
           {{"bench", "--len"}, "--len needs a value"},
           {{"bench", "--json", "--len", "3"}, "--json needs a value, but the flag '--len' follows"},
           {{"bench", "--json", "-o", "3"}, "--json needs a value, but the flag '-o' follows"},
           {{"bench", "--json", "a", "--json", "b"}, "--json was given twice"},
           {{"bench", "--json", "a", "--json=b"}, "--json was given twice"},
           {{"bench", "-o", "a", "--out", "b"}, "-o and --out are the same flag"},
           {{"bench", "--quick=1"}, "--quick takes no value, but got '1'"}}) {
    const std::string message = refusal([&] { read_arguments(some_program(), typed); });
    EXPECT_NE(message.find(reason), std::string::npos) << reason << ": " << message;
  }
}

// The tool as a program.

const char* const kCommands[] = {"demo",   "bench",  "tune",       "info",        "check", "explain", "io",
                                 "memory", "attend", "cache list", "cache clear", "pack",  "support"};

// The flags that a command needs in addition to the flag under test.
std::string needed_by(const std::string& command, const std::string& flag) {
  std::string words;
  if (command == "attend")
    for (const char* other : {"--q", "--k", "--v"})
      if (flag != other) words += std::string(" ") + other + " x.npy";
  if (command == "pack" && flag != "--out") words += " -o x";
  if (command == "tune" && flag != "--dry-run") words += " --dry-run";
  if (command == "check" && (flag == "--minutes" || flag == "--max-growth")) words += " --forever";
  return words;
}

// The flags of a command and the type of their value, "" if there is none, from its help.
std::map<std::string, std::string> flags_of(const test::TempDir& dir, const std::string& command) {
  const std::string help = run(dir, command + " --help").out;
  const std::regex line(R"(\n  (?:-\w,)?(--[a-z-]+)(?: (\S+))?)");
  std::map<std::string, std::string> flags;
  for (std::sregex_iterator at(help.begin(), help.end(), line), end; at != end; ++at) {
    const std::string type = (*at)[2];
    // A second space begins the description, and "Needs:" or "Excludes:" is not a type.
    const bool has_type = !type.empty() && type.back() != ':' && help[static_cast<size_t>(at->position(2)) - 2] != ' ';
    flags[(*at)[1]] = has_type ? type.substr(0, type.find('=')) : "";
  }
  return flags;
}

TEST_F(Commands, every_flag_of_every_command_refuses_what_is_not_its_value) {
  size_t tried = 0;
  for (const std::string command : kCommands) {
    const auto flags = flags_of(dir, command);
    ASSERT_TRUE(flags.contains("--help")) << command;
    expect_refused(dir, command + " --hlep", "did you mean '--help'?");
    expect_refused(dir, command + " word", "but got 'word'");
    for (const auto& [flag, type] : flags) {
      if (flag == "--help") continue;
      ++tried;
      const std::string words = command + needed_by(command, flag) + " " + flag;
      if (type.empty()) {
        expect_refused(dir, words + "=x", flag + " takes no value");
        expect_refused(dir, words + " " + flag, flag + " was given twice");
        continue;
      }
      if (flag != "--causal") {
        expect_refused(dir, words, flag + " needs a value");
        expect_refused(dir, words + " --help", flag + " needs a value, but the flag '--help' follows");
      }
      if (type == "FILE") {
        expect_refused(dir, words + " ''", flag + " is ''");
      } else {
        expect_refused(dir, words + " sideways", "'sideways'");
        expect_refused(dir, words + "=", "''");
      }
      if (type == "N" || type == "N,...")
        expect_refused(dir, words + " 99999999999999999999", "must be a whole number");
    }
  }
  EXPECT_GT(tried, 100u);
}

TEST_F(Commands, a_type_has_its_usual_names_in_every_command) {
  for (const char* words :
       {"explain", "tune --dry-run --device cpu --len 8", "memory --len 64", "io --len 64 --no-measure"}) {
    const Outcome outcome = run(dir, std::string(words) + " --dtype Float16");
    EXPECT_EQ(outcome.code, kExitOk) << words << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("f16"), std::string::npos) << words << ": " << outcome.out;
  }
  for (const char* words : {"explain", "tune", "bench", "memory", "io", "attend --q x --k x --v x", "pack -o x"})
    expect_refused(dir, std::string(words) + " --dtype fp8", "f16 (or fp16, float16, half), bf16 (bfloat16)");
}

TEST_F(Commands, bench_takes_causal_alone_or_with_values) {
  const std::string grid = " --device cpu --heads 1 --head-dim 8 --seconds 0.001 --contestant cuflash --json now.json ";
  const auto causal = [&](const std::string& words) {
    const Outcome outcome = run(dir, "bench" + grid + words);
    EXPECT_EQ(outcome.code, kExitOk) << words << ": " << outcome.err;
    std::vector<int> values;
    for (const BenchResult& result : read_bench_file(dir.file("now.json")).results) {
      EXPECT_EQ(result.point.len_k, 9) << words;
      values.push_back(result.point.causal);
    }
    return values;
  };
  EXPECT_EQ(causal("--causal --len 9"), (std::vector{1}));
  EXPECT_EQ(causal("--len 9 --causal"), (std::vector{1}));
  EXPECT_EQ(causal("--causal 0,1 --len 9"), (std::vector{0, 1}));
  EXPECT_EQ(causal("--causal 0 --causal 1 --len 9"), (std::vector{0, 1}));
  EXPECT_EQ(causal("--causal=0 --len 9"), (std::vector{0}));
  EXPECT_EQ(causal("--len 9"), (std::vector{0}));
  for (const char* command : {"explain", "memory --len 64", "io --no-measure --len 64"}) {
    const std::string with = run(dir, std::string(command) + " --causal --batch 2").out;
    EXPECT_NE(with, run(dir, std::string(command) + " --batch 2").out) << command;
    for (const char* other : {" --causal 1 --batch 2", " --causal=true --batch 2", " --batch 2 --causal"})
      EXPECT_EQ(run(dir, command + std::string(other)).out, with) << command << other;
    EXPECT_EQ(run(dir, std::string(command) + " --causal 0 --batch 2").out,
              run(dir, std::string(command) + " --batch 2").out);
  }
}

TEST_F(Commands, flags_have_one_name_in_all_commands_and_keep_their_older_ones) {
  const std::string problem = run(dir, "explain --len 64 --len-k 32 --head-dim 8 --head-dim-v 4").out;
  EXPECT_NE(problem.find("Sq=64 Sk=32 D=8 Dv=4"), std::string::npos) << problem;
  for (const char* same :
       {"--seq-q 64 --seq-k 32 --dim 8 --dim-v 4", "--seq-q=64 --len-k=32 --dim=8 --head-dim-v=4",
        "--len 32 --len-q 64 --head-dim 8 --head-dim-v 4", "--len-q 64 --len-k 32 --head-dim 8 --head-dim-v 4"})
    EXPECT_EQ(run(dir, std::string("explain ") + same).out, problem) << same;
  EXPECT_EQ(run(dir, "explain --seq-q 64").out, run(dir, "explain --len 64").out) << "keys as many as queries";
  expect_refused(dir, "explain --seq-q x",
                 "--len is 'x', must be a whole number from 0 to 2^63 - 1 (--seq-q is the "
                 "older name of --len)");
  expect_refused(dir, "explain --seq-q 1 --len 2", "--seq-q and --len are the same flag");
  expect_refused(dir, "demo --max-seq 5", "--max-len is 5, must be a whole number from 256 to 65536");
  expect_refused(dir, "pack --arch sm_90a --dim x -o x", "--head-dim is 'x'");
  for (const char* command : {"memory", "io --no-measure"}) {
    const Outcome outcome = run(dir, command + std::string(" --len 64,128 --len-q 1"));
    EXPECT_EQ(outcome.code, kExitOk) << outcome.err;
    for (const char* word : {"1 queries", "1x64 ", "1x128 "})
      EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
  }
  // Each has one name in every help.
  for (const std::string command : {"bench", "tune", "explain", "io", "memory"})
    for (const char* flag : {"--batch", "--heads", "--heads-k", "--head-dim", "--head-dim-v", "--len", "--len-q",
                             "--len-k", "--dtype", "--causal"})
      EXPECT_TRUE(flags_of(dir, command).contains(flag)) << command << " " << flag;
}

}  // namespace
}  // namespace cuflash::cli
