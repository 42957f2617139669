// Tuned choices: the file, which problem gets which choice, and how plans use them.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cpu/plan/tuned_tile.h"
#include "cuda/families/family.h"
#include "cuda/families/sm90_measured_tables.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/program.h"
#include "cuda/plan/typical.h"
#include "tests/shared/temp_dir.h"
#include "tuned/table.h"

namespace cuflash::tuned {
namespace {

using cuda::arch_named;
using cuda::KernelPreference;
using cuda::Reproducible;

constexpr int32_t kInteger = 0;

Choice sm90_forward_choice() {
  Choice choice{"sm90", 0, 96};
  choice.warpgroups = 2, choice.stages = 2, choice.schedule = 3;
  return choice;
}

Devices some_choices() {
  Devices devices;
  Kind kind{Direction::forward, DType::bf16, Mask::causal, 128, 64, 2048, 2048, 256, 1, 0};
  devices["a GPU, sm_90a"][kind] = {sm90_forward_choice(), 4};
  kind.options = kSoftcap | kAlibi;
  devices["a GPU, sm_90a"][kind] = {sm90_forward_choice(), 12};
  kind.options = 0;
  kind.direction = Direction::decode, kind.page_size = 16, kind.mask = Mask::none;
  Choice decode{"portable", 16, 64, 1, 4, 1};
  decode.stages = 2, decode.ctas_per_sm = 2, decode.splits = 7;
  devices["a GPU, sm_90a"][kind] = {decode, 31};
  kind.direction = Direction::backward, kind.dtype = DType::f32, kind.heads = 0;
  devices["a CPU"][kind] = {{"cpu", 64, 512}, 2};
  return devices;
}

// The text with a correct checksum.
std::string sealed(std::string text) {
  text.resize(text.rfind("checksum "));
  return text + "checksum " + hex(sha256(text)) + "\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no " + from);
  return text.replace(at, from.size(), to);
}

TEST(TunedTable, is_read_as_it_was_written) {
  Devices read;
  ASSERT_EQ(parse(text_of(some_choices()), read), "");
  EXPECT_EQ(text_of(read), text_of(some_choices()));
  EXPECT_EQ(count(read), 4u);
  const auto& [kind, measured] = *read.at("a CPU").begin();
  EXPECT_EQ(kind, some_choices().at("a CPU").begin()->first);
  EXPECT_EQ(measured.choice, (Choice{"cpu", 64, 512}));
  EXPECT_EQ(measured.gain, 2);
  EXPECT_EQ(parse(text_of({}), read), "");
  EXPECT_TRUE(read.empty());
}

TEST(TunedTable, that_is_broken_is_not_believed) {
  const std::string text = text_of(some_choices());
  Devices read;
  for (size_t length = 0; length < text.size(); ++length) EXPECT_NE(parse(text.substr(0, length), read), "") << length;
  for (size_t n = 0; n < text.size(); ++n) {
    std::string flipped = text;
    flipped[n] = static_cast<char>(flipped[n] ^ 1);
    EXPECT_NE(parse(flipped, read), "") << n;
  }
  EXPECT_NE(parse(text + "\n", read), "");
  for (const auto& [from, to, reason] : std::initializer_list<std::tuple<const char*, const char*, const char*>>{
           {"cuflash tuned 2", "cuflash tuned 21", "another format"},
           {"made by ", "made by x", "other kernels"},
           {"forward bf16", "sideways bf16", "no choice"},
           {"bf16 causal", "bf17 causal", "no choice"},
           {"tile_k=96", "tile_k=-96", "no choice"},
           {"tile_k=96", "tile_k=99999999999", "no choice"},
           {"tile_k=96", "tile=96", "no choice"},
           {"sm90", "built_in", "no choice"},
           {"sm90", "SM 90", "no choice"},
           {"options=softcap,alibi", "options=softcap,,alibi", "no choice"},
           {"options=softcap,alibi", "options=softcap,colour", "no choice"},
           {"options=softcap,alibi", "options=", "no choice"},
           {"options=softcap,alibi", "options=3", "no choice"},
           {" : 31", " : much", "no choice"},
           {" : 31", "", "no choice"},
           {"device a CPU", "a CPU", "no choice"}}) {
    const std::string problem = parse(sealed(replaced(text, from, to)), read);
    EXPECT_NE(problem.find(reason), std::string::npos) << to << ": " << problem;
  }
  const std::string line =
      text.substr(text.find("backward "), text.find('\n', text.find("backward ")) + 1 - text.find("backward "));
  EXPECT_NE(parse(sealed(replaced(text, line, line + line)), read), "") << "two choices for one kind";
  EXPECT_TRUE(read.empty());
}

TEST(TunedTable, is_a_private_file_that_grows) {
  const test::TempDir dir;
  const std::string directory = dir.file("cache");
  EXPECT_EQ(read_table(directory).state, "");
  EXPECT_FALSE(dir.has("cache")) << "who reads makes nothing";
  for (const auto& [device, choices] : some_choices()) ASSERT_EQ(write_choices(directory, device, choices), "");
  struct stat status {};
  ASSERT_EQ(::stat((directory + "/tuned.txt").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(text_of(read_table(directory).devices), text_of(some_choices()));
  // None if the built-in choice was the fastest.
  const Kind kind = some_choices().at("a CPU").begin()->first;
  ASSERT_EQ(write_choices(directory, "a CPU", {{kind, {}}}), "");
  EXPECT_EQ(count(read_table(directory).devices), 3u);

  ::chmod((directory + "/tuned.txt").c_str(), 0666);
  EXPECT_NE(read_table(directory).state.find("another user"), std::string::npos);
  EXPECT_EQ(count(read_table(directory).devices), 0u);
  dir.write("cache/tuned.txt", std::string(2 << 20, 'x'));
  ::chmod((directory + "/tuned.txt").c_str(), 0600);
  EXPECT_NE(read_table(directory).state.find("at most"), std::string::npos);
  std::filesystem::remove(directory + "/tuned.txt");
  std::filesystem::create_symlink("elsewhere", directory + "/tuned.txt");
  EXPECT_NE(read_table(directory).state, "");
  // An unusable file is replaced, and links are not followed.
  ASSERT_EQ(write_choices(directory, "a CPU", some_choices().at("a CPU")), "");
  EXPECT_EQ(count(read_table(directory).devices), 1u);
  EXPECT_EQ(cuda::DiskCache(directory).clear(), 0u);
  EXPECT_FALSE(dir.has("cache/tuned.txt"));
  ::chmod(directory.c_str(), 0777);
  EXPECT_NE(read_table(directory).state.find("written by others"), std::string::npos);
  EXPECT_NE(write_choices(directory, "a CPU", {}).find("written by others"), std::string::npos);
  EXPECT_NE(write_choices("", "a CPU", {}), "");
}

TEST(TunedKinds, are_for_problems_of_equal_lengths) {
  const cuda::Typical t{.causal = true, .batch = 3, .len_q = 1500, .len_k = 2048};
  ForwardProblem p = cuda::forward_of(t);
  const auto kind = kind_of(Direction::forward, p, Heads::counted);
  EXPECT_EQ(kind, (Kind{Direction::forward, DType::bf16, Mask::causal, 128, 128, 2048, 2048, 64, 1, 0}));
  EXPECT_EQ(kind_of(Direction::forward, p, Heads::any)->heads, 0);
  p.window_left = 100;
  EXPECT_EQ(kind_of(Direction::forward, p, Heads::any)->mask, Mask::window);
  for (const auto change : std::initializer_list<void (*)(ForwardProblem&)>{
           [](ForwardProblem& q) { q.softcap = 1; }, [](ForwardProblem& q) { q.dropout.p = 0.5; },
           [](ForwardProblem& q) { q.scale = -1; }, [](ForwardProblem& q) { q.bias.data = &q; },
           [](ForwardProblem& q) { q.mask.data = &q; }, [](ForwardProblem& q) { q.sink.data = &q; },
           [](ForwardProblem& q) { q.slopes.data = &q; }, [](ForwardProblem& q) { q.cu_q = &kInteger; },
           [](ForwardProblem& q) { q.used_q = &kInteger; }, [](ForwardProblem& q) { q.used_k = &kInteger; },
           [](ForwardProblem& q) { q.cache.rows = &kInteger; }}) {
    ForwardProblem changed = p;
    change(changed);
    EXPECT_EQ(kind_of(Direction::forward, changed, Heads::any), std::nullopt);
  }
  for (const int options : {1, 2, 4, 8, 16, 1 | 4})
    for (const bool sink : {false, true}) {
      const ForwardProblem with = cuda::forward_of({.options = options, .sink = sink});
      const std::optional<Kind> counted = kind_of(Direction::forward, with, Heads::counted);
      EXPECT_EQ(counted->options, options | (sink ? int64_t{kSinks} : 0));
      EXPECT_EQ(kind_of(Direction::forward, with, Heads::any), std::nullopt);
      EXPECT_EQ(parse_kind(to_string(*counted)), counted);
    }
  CacheProblem cache = cuda::cache_of({.batch = 3, .page_size = 16});
  cache.window_right = 0;  // one query at the end sees all, with a mask or without
  EXPECT_EQ(kind_of(Direction::decode, cache, Heads::counted),
            (Kind{Direction::decode, DType::bf16, Mask::none, 128, 128, 1, 8192, 24, 4, 16}));
}

// A choice serves the set of options that it was measured with, and no other.
TEST(TunedKinds, differ_in_their_sets_of_options) {
  const auto with = [](int options, bool sink = false) { return cuda::forward_of({.options = options, .sink = sink}); };
  const Choice choice = sm90_forward_choice();
  const Kind capped = *kind_of(Direction::forward, with(kSoftcap | kAlibi), Heads::counted);
  const Choices choices{{capped, {choice, 5}}};
  EXPECT_EQ(*choice_for(choices, Direction::forward, with(kSoftcap | kAlibi)), choice);
  for (const int options : {0, 1, 2, 1 | 2 | 16, 4, 8})
    EXPECT_EQ(choice_for(choices, Direction::forward, with(options)), nullptr) << options;
  EXPECT_EQ(choice_for(choices, Direction::forward, with(kSoftcap | kAlibi, true)), nullptr) << "sinks";
  EXPECT_EQ(choice_for(choices, Direction::backward, with(kSoftcap | kAlibi)), nullptr);
  EXPECT_EQ(parse_options("sinks,bias"), kSinks | kBias);
  EXPECT_EQ(options_text(kSinks | kBias), "bias,sinks");
  for (const char* text : {"", ",", "bias,", ",bias", "Bias", "bias softcap", "4"})
    EXPECT_EQ(parse_options(text), std::nullopt) << text;
}

TEST(TunedPlans, take_a_legal_choice_for_their_kernel) {
  const ForwardProblem p = cuda::forward_of({});
  const cuda::Arch hopper = arch_named("sm_90a"), ampere = arch_named("sm_80");
  Choice choice = sm90_forward_choice();
  const cuda::ForwardPlan plan = plan_forward(p, hopper, KernelPreference::best, &choice);
  EXPECT_TRUE(plan.tuned);
  EXPECT_EQ(plan.tile_k, 96);
  EXPECT_EQ(plan.launch.shared_bytes, shared_bytes(plan.launch.kernel.as<Sm90ForwardConfig>()));
  EXPECT_STREQ(plan.reason, cuda::kTunedReason);
  EXPECT_FALSE(plan_forward(p, hopper, KernelPreference::portable, &choice).tuned) << "of another kernel";
  EXPECT_FALSE(plan_forward(p, ampere, KernelPreference::best, &choice).tuned) << "of another kernel";
  // The problem, not the choice, decides about everything that belongs to an option.
  const cuda::ForwardPlan capped =
      plan_forward(cuda::forward_of({.options = 1}), hopper, KernelPreference::best, &choice);
  EXPECT_TRUE(capped.tuned);
  EXPECT_EQ(capped.launch.kernel.as<Sm90ForwardConfig>().schedule, choice.schedule | kFixedMax);
  for (const auto& [member, value] : {std::pair{&Choice::tile_k, 0},
                                      {&Choice::tile_k, 8},
                                      {&Choice::tile_k, 1 << 30},
                                      {&Choice::warpgroups, 0},
                                      {&Choice::warpgroups, 5},
                                      {&Choice::stages, 1},
                                      {&Choice::stages, 1000},
                                      {&Choice::schedule, 16}}) {
    Choice illegal = choice;
    illegal.*member = value;
    EXPECT_FALSE(plan_forward(p, hopper, KernelPreference::best, &illegal).tuned) << to_string(illegal);
  }

  Choice portable{"portable", 64, 64, 4, 0, 1};
  portable.stages = 1, portable.ctas_per_sm = 2;
  const cuda::ForwardPlan on_ampere = plan_forward(p, ampere, KernelPreference::best, &portable);
  EXPECT_TRUE(on_ampere.tuned);
  EXPECT_EQ(on_ampere.tile_q, 64);
  portable.tile_q = 48;
  EXPECT_FALSE(plan_forward(p, ampere, KernelPreference::best, &portable).tuned);

  Choice backward{"sm90"};
  backward.warpgroups = 2, backward.stages = 2;
  EXPECT_TRUE(plan_backward(cuda::backward_of({}), hopper, Reproducible::no, KernelPreference::best, &backward).tuned);
  backward.warpgroups = 3;
  EXPECT_FALSE(plan_backward(cuda::backward_of({}), hopper, Reproducible::no, KernelPreference::best, &backward).tuned);
  Choice other{"portable", 32, 64, 0, 4, 1};
  other.stages = 1, other.ctas_per_sm = 1;
  const cuda::BackwardPlan changed =
      plan_backward(cuda::backward_of({}), ampere, Reproducible::no, KernelPreference::best, &other);
  EXPECT_TRUE(changed.tuned);
  EXPECT_EQ(changed.tile_q, 32);

  Choice decode{"sm90", 16, 64, 1, 4, 1};
  decode.stages = 2, decode.ctas_per_sm = 2, decode.splits = 5;
  const cuda::KvPlan cut = plan_kv(cuda::cache_of({}), hopper, 132, KernelPreference::best, &decode);
  EXPECT_TRUE(cut.tuned);
  EXPECT_EQ(cut.base_splits, 5);
  EXPECT_EQ(cut.launch.kernel.as<KvConfig>().stages, 2);
  const cuda::KvPlan fixed = plan_kv(cuda::cache_of({.num_splits = 3}), hopper, 132, KernelPreference::best, &decode);
  EXPECT_FALSE(fixed.tuned) << "a number of splits promises the same bits everywhere";
  decode.splits = 1 << 30;
  EXPECT_LE(plan_kv(cuda::cache_of({}), hopper, 132, KernelPreference::best, &decode).splits, 128);

  // Kernels assume that without pages a tile of keys is one TMA box.
  for (const int tile_k : {64, 128}) {
    decode.tile_k = tile_k, decode.ctas_per_sm = 1;
    const cuda::KvPlan plan = plan_kv(cuda::cache_of({}), hopper, 132, KernelPreference::best, &decode);
    EXPECT_TRUE(plan.tuned);
    EXPECT_EQ(plan.tile_k, tile_k);
    EXPECT_EQ(plan.box_rows, tile_k);
    const cuda::KvPlan paged = plan_kv(cuda::cache_of({.page_size = 64}), hopper, 132, KernelPreference::best, &decode);
    EXPECT_EQ(paged.box_rows, 64);
  }
}

// A kernel for one key tile computes nothing of a second one.
TEST(TunedPlans, for_one_key_tile_serve_no_longer_sequences) {
  const auto plan_of = [](int64_t length, const Choice& choice) {
    return plan_forward(cuda::forward_of({.dim_qk = 64, .dim_v = 64, .batch = 64, .len_q = length, .len_k = length}),
                        arch_named("sm_90a"), KernelPreference::best, &choice);
  };
  const auto schedule_of = [](const cuda::ForwardPlan& plan) {
    return plan.launch.kernel.as<Sm90ForwardConfig>().schedule;
  };
  Choice choice{"sm90", 0, 64};
  choice.warpgroups = 1, choice.stages = 2, choice.schedule = kPinWait | kPrefetchQ | kOneKeyTile | 2 * kMoreCtas;
  EXPECT_TRUE(plan_of(64, choice).tuned);
  EXPECT_EQ(plan_of(64, choice).launch.ctas_per_sm, 3);
  EXPECT_FALSE(plan_of(65, choice).tuned);
  choice.schedule ^= kOneKeyTile | kFirstMax;
  EXPECT_TRUE(plan_of(65, choice).tuned);
  EXPECT_EQ(schedule_of(plan_of(65, choice)), choice.schedule);
  EXPECT_TRUE(has_one_key_tile(plan_of(64, choice).launch.kernel.as<Sm90ForwardConfig>()));
  choice.warpgroups = 2;
  EXPECT_FALSE(plan_of(65, choice).tuned) << "the registers of two warpgroups hold no tile and the previous one";
  choice.tile_k = 128, choice.schedule = kPinWait | kPrefetchQ | kOneKeyTile | kMoreCtas;
  EXPECT_TRUE(plan_of(128, choice).tuned);
  EXPECT_FALSE(plan_of(129, choice).tuned);
  choice.warpgroups = 3;
  EXPECT_FALSE(plan_of(128, choice).tuned) << "the registers of an SM serve four consumer warpgroups";
}

// The tables that tools/tile_tables.py writes.
TEST(MeasuredTiles, serve_the_calls_that_were_measured) {
  const cuda::Arch hopper = arch_named("sm_90a");
  const auto config_of = [&](const cuda::Typical& t, const Choice* choice = nullptr) {
    const cuda::ForwardPlan plan =
        plan_forward(cuda::forward_of(t), hopper, KernelPreference::best, choice, {.has_workspace = false});
    EXPECT_EQ(plan.tuned, choice != nullptr);
    return plan.launch.kernel.as<Sm90ForwardConfig>();
  };
  const auto is = [](const Sm90ForwardConfig& c, const cuda::MeasuredForward& row) {
    return c.warpgroups == row.warpgroups && c.tile_k == row.tile_k && c.stages == row.stages &&
           c.schedule == row.schedule;
  };
  Choice choice = sm90_forward_choice();
  choice.tile_k = 48;  // legal for every head size
  ASSERT_FALSE(cuda::kMeasuredForward.empty());
  for (const cuda::MeasuredForward& row : cuda::kMeasuredForward) {
    // The problem makes whole rounds for every number of warpgroups, so that the fastest row is the choice.
    const cuda::Typical t{.dim_qk = row.dim_qk,
                          .dim_v = row.dim_v,
                          .options = row.options,
                          .causal = row.causal,
                          .batch = 1,
                          .heads_q = 33,
                          .heads_k = 33,
                          .len_q = 3072,
                          .len_k = 3072};
    EXPECT_EQ(is(config_of(t), row), row.row_time == 1) << row.dim_qk << " " << row.options;
    EXPECT_EQ(config_of(t, &choice).tile_k, choice.tile_k) << "a tuned choice has precedence";
  }
  // A row that was measured for ALiBi without a mask serves no other call. Ping-pong leaves more registers than scores
  // that stay in them.
  const cuda::Typical alibi{.options = kAlibi, .batch = 1, .heads_q = 33, .heads_k = 33, .len_q = 3072, .len_k = 3072};
  EXPECT_EQ(config_of(alibi).tile_k, 80);
  cuda::Typical other = alibi;
  other.causal = true;
  EXPECT_NE(config_of(other).schedule & kFirstMax, 0);
  other = alibi, other.packed = true;
  EXPECT_NE(config_of(other).schedule & kFirstMax, 0);
  for (const int options : {0, 2 | 1, 2 | 16, 16}) {
    other = alibi, other.options = options;
    EXPECT_NE(config_of(other).schedule & kFirstMax, 0) << options;
  }
  other = alibi, other.dim_qk = other.dim_v = 96;
  EXPECT_NE(config_of(other).schedule & kFirstMax, 0);
}

// Without a causal mask, keys right of the diagonal come first, and rows of ALiBi outgrow their first tile.
TEST(MeasuredTiles, with_alibi_and_64_columns_keep_scores_only_under_a_causal_mask) {
  const auto schedule_of = [&](bool causal, int options) {
    const ForwardProblem p = cuda::forward_of({.dim_qk = 64, .dim_v = 64, .options = options, .causal = causal});
    return plan_forward(p, arch_named("sm_90a"), KernelPreference::best).launch.kernel.as<Sm90ForwardConfig>().schedule;
  };
  EXPECT_EQ(schedule_of(false, kAlibi) & kFirstMax, 0);
  EXPECT_NE(schedule_of(true, kAlibi) & kFirstMax, 0);
  EXPECT_NE(schedule_of(false, kDropout) & kFirstMax, 0);
}

// A choice may decide whether dQ has a separate kernel, unless a call requests dQ alone.
TEST(TunedPlans, of_backward_choose_the_kernel_of_dq) {
  const cuda::Arch hopper = arch_named("sm_90a");
  Choice choice{"sm90"};
  choice.warpgroups = 2, choice.stages = 2;
  for (const int adds : {0, 1}) {
    choice.adds_dq = adds;
    const cuda::BackwardPlan plan =
        plan_backward(cuda::backward_of({}), hopper, Reproducible::no, KernelPreference::best, &choice);
    EXPECT_TRUE(plan.tuned);
    EXPECT_EQ(plan.main.kernel.as<Sm90BackwardConfig>().dq, adds);
    EXPECT_EQ(plan.dq.grid_x != 0, adds == 0);
    BackwardProblem no_dq = cuda::backward_of({});
    no_dq.dq = {};
    const cuda::BackwardPlan without = plan_backward(no_dq, hopper, Reproducible::no, KernelPreference::best, &choice);
    EXPECT_EQ(without.main.kernel.as<Sm90BackwardConfig>().dq, 0);
    EXPECT_EQ(without.dq.grid_x, 0u);
  }
}

// Register estimates must not refuse a config that is known to compile without spills.
TEST(TunedPlans, could_be_what_is_built_in) {
  const auto expect_legal = [](const auto& plan, const cuda::KernelKey& kernel, const cuda::Arch& arch) {
    const cuda::Limits l = plan.family->limits(kernel, arch);
    EXPECT_TRUE(is_legal(l)) << cuda::name_of(kernel) << " " << l.shared_bytes << " of " << l.max_shared_bytes << ", "
                             << l.registers << " of " << l.max_registers;
  };
  for (const char* name : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
    const cuda::Arch arch = arch_named(name);
    for (const cuda::Typical& t : cuda::typical_problems()) {
      if (t.options != 0) continue;
      const cuda::ForwardPlan forward = plan_forward(cuda::forward_of(t), arch, KernelPreference::best);
      expect_legal(forward, forward.launch.kernel, arch);
      for (const Reproducible reproducible : {Reproducible::no, Reproducible::yes}) {
        const cuda::BackwardPlan backward =
            plan_backward(cuda::backward_of(t), arch, reproducible, KernelPreference::best);
        expect_legal(backward, backward.main.kernel, arch);
        if (backward.dq.grid_x != 0) expect_legal(backward, backward.dq.kernel, arch);
      }
    }
    for (const cuda::TypicalCache& t : cuda::typical_caches())
      if (t.options == 0 && (t.dtype != DType::f64 || t.dim_qk <= 128)) {
        const cuda::KvPlan plan = plan_kv(cuda::cache_of(t), arch, 132, KernelPreference::best);
        expect_legal(plan, plan.launch.kernel, arch);
      }
  }
}

TEST(TunedPlans, over_a_cache_give_large_tiles_of_rows_to_warpgroups) {
  const cuda::Arch hopper = cuda::arch_named("sm_90a");
  const auto tile_q_of = [&](int64_t batch, int64_t len_q) {
    const cuda::KvPlan plan =
        plan_kv(cuda::cache_of({.batch = batch, .len_q = len_q}), hopper, 132, KernelPreference::best);
    EXPECT_TRUE(is_legal(plan.family->limits(plan.launch.kernel, hopper))) << batch << " " << len_q;
    return plan.tile_q;
  };
  EXPECT_EQ(tile_q_of(16, 16), 64);
  EXPECT_EQ(tile_q_of(16, 17), 128);
  EXPECT_EQ(tile_q_of(16, 33), 256);
  EXPECT_EQ(tile_q_of(1, 33), 64);  // too few of them
  const cuda::KvPlan plan = plan_kv(cuda::cache_of({.batch = 16, .len_q = 17}), hopper, 132, KernelPreference::best);
  auto c = plan.launch.kernel.as<KvConfig>();
  const auto fault_of = [&] { return plan.family->limits(key_of(*plan.launch.kernel.type, hopper, c), hopper).fault; };
  c.row_warps = 4, c.key_warps = 2;
  EXPECT_EQ(fault_of(), cuda::Fault::shape);
  c.row_warps = 8, c.key_warps = 1, c.v_in_k = 1;
  EXPECT_EQ(fault_of(), cuda::Fault::shape);
}

// Equal tasks are as large as they can be if no thread has to wait for another; a causal mask makes them unequal.
TEST(TunedTiles, on_the_cpu_suit_the_threads) {
  const auto tile_q = [](int64_t len, int64_t threads, bool causal) {
    const ForwardProblem p = cuda::forward_of(
        {.dtype = DType::f32, .causal = causal, .batch = 1, .heads_q = 8, .heads_k = 8, .len_q = len, .len_k = len});
    return cpu::forward_tile(p, 32, 1, 1024, threads, nullptr).q;
  };
  EXPECT_EQ(tile_q(2048, 1, false), 1024);
  EXPECT_EQ(tile_q(512, 2, false), 512);
  EXPECT_EQ(tile_q(512, 2, true), 256);
  EXPECT_EQ(tile_q(512, 16, false), 256);
  EXPECT_EQ(tile_q(128, 16, false), 64);
  EXPECT_EQ(tile_q(128, 16, true), 64);
}

TEST(TunedTiles, on_the_cpu_have_the_same_keys_for_any_batch_and_threads) {
  const Choice choice{"cpu", 64, 128};
  for (const auto& [batch, threads] : {std::pair<int64_t, int64_t>{1, 1}, {100, 1}, {1, 64}}) {
    const ForwardProblem p = cuda::forward_of({.dtype = DType::f32, .batch = batch});
    EXPECT_EQ(cpu::forward_tile(p, 16, 1, 512, threads, &choice).k, 128);
    EXPECT_EQ(cpu::forward_tile(p, 16, 1, 512, threads, &choice).q, 64);
    EXPECT_EQ(cpu::backward_tile(p, 16, 1, &choice).q, 64);
  }
  const ForwardProblem p = cuda::forward_of({.dtype = DType::f32});
  for (const Choice& illegal : {Choice{"cpu", 0, 128}, Choice{"cpu", 64, 1 << 30}, sm90_forward_choice()})
    EXPECT_EQ(cpu::forward_tile(p, 16, 1, 512, 1, &illegal).k, 256) << to_string(illegal);
  {
    const ScopedChoice forced(choice);
    EXPECT_EQ(cpu::tile_for(p, 1).k, 128);
    const ScopedChoice built_in((Choice()));
    EXPECT_EQ(cpu::tile_for(p, 1).k, 256);
  }
  EXPECT_EQ(cpu::tile_for(p, 1).k, 256);
}

}  // namespace
}  // namespace cuflash::tuned
