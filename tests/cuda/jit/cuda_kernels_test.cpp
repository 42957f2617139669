// Every family of kernels compiles for every architecture without spills, without warnings from ptxas, and within the
// shared memory of the architecture. Takes a representative set, and nothing for sm_89; with CUFLASH_TEST_SCALE=3 more
// head sizes, and more sets of options of the sm90 families; with 10 or more everything that `cuflash pack` compiles; below
// 1 (sanitizers of host code) the kernels of one problem.
//
// Compiles the kernels that tests/cuda/jit/cuda_kernels.txt does not record with the same sources and compiler, and a sample of
// the others; with CUFLASH_TEST_SCALE=10 all. CUFLASH_UPDATE_KERNELS=1 build/release/bin/cuda_kernels_test rewrites the
// file; commit the difference, which shows what a change did to the registers of kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "cuda/families/registry.h"
#include "cuda/jit/compile.h"
#include "cuda/plan/typical.h"
#include "error.h"
#include "kernel_record.h"
#include "nvrtc.h"

namespace cuflash::cuda {
namespace {

double scale() {
  const char* given = std::getenv("CUFLASH_TEST_SCALE");
  return given ? std::atof(given) : 1;
}

void add(std::vector<Launch>& launches, const Launch& launch) {
  const auto same = [&](const Launch& other) { return other.kernel == launch.kernel; };
  if (launch.grid_x != 0 && std::none_of(launches.begin(), launches.end(), same)) launches.push_back(launch);
}

void add_launches_of(std::vector<Launch>& launches, const Typical& t, const Arch& arch, Reproducible reproducible) {
  add(launches, plan_forward(forward_of(t), arch, cuda::KernelPreference::portable).launch);
  const BackwardPlan plan = plan_backward(backward_of(t), arch, reproducible, cuda::KernelPreference::portable);
  for (const Launch* launch : plan.launches()) add(launches, *launch);
}

// The portable kernels that need most registers. On sm_90a, which has its own kernels for 16-bit types: f32 and f64 of
// the largest budgets (a head size stands for those that are padded to it), and all options together. On the others those
// that differ most: tiles follow the shared memory. f16 differs from bf16 in the instruction only. CUFLASH_TEST_SCALE=10
// compiles everything that packs hold.
std::vector<Typical> problems_for(const Arch& arch) {
  constexpr int kMany = kAllOptions & ~kScaleFirst;
  std::vector<Typical> problems;
  if (!arch.wgmma) {
    problems.push_back({.dim_qk = 256, .dim_v = 256, .sink = true});
    if (arch.number() == 80) problems.push_back({.options = kMany});
    if (arch.number() != 80) problems.push_back({.dtype = DType::f32});
    return problems;
  }
  if (scale() >= 3) {
    problems.push_back({.sink = true});
    problems.push_back({.dtype = DType::f64});
    problems.push_back({.dtype = DType::f64, .dim_qk = 256, .dim_v = 256});
    for (const int64_t dim : {64, 128}) problems.push_back({.dtype = DType::f32, .dim_qk = dim, .dim_v = dim});
  }
  problems.push_back({.dtype = DType::f32, .dim_qk = 256, .dim_v = 256});
  problems.push_back({.dim_qk = 256, .dim_v = 256, .options = kMany});
  problems.push_back({.dtype = DType::f32, .options = kMany, .aligned = false});
  return problems;
}

// The sm90 families: every register budget without options, with the options that need most registers, and with all of
// them; dQ in the main kernel and in its own.
void add_hopper_forward(std::vector<Launch>& launches, const Arch& arch) {
  constexpr int kArithmetic = kSoftcap | kAlibi, kMany = kAllOptions & ~kScaleFirst;
  const bool thorough = scale() >= 3;
  const auto add_forward = [&](const Typical& t) {
    const ForwardPlan plan = plan_forward(forward_of(t), arch, KernelPreference::best);
    EXPECT_NE(plan.family, &portable_forward) << plan.family->name;
    for (const Launch* launch : plan.launches()) add(launches, *launch);
  };
  for (const int64_t dim : {64, 128, 256}) {
    add_forward({.dim_qk = dim, .dim_v = dim, .len_q = 16384, .len_k = 16384});
    if (dim != 128 && !thorough) continue;
    add_forward({.dim_qk = dim, .dim_v = dim, .causal = true, .len_q = 512, .len_k = 512});
    // Keys that CTAs share, and listed tiles.
    add_forward({.dim_qk = dim, .dim_v = dim, .batch = 1, .heads_k = 16, .len_q = 192, .len_k = 8192});
    add_forward({.dim_qk = dim, .dim_v = dim, .causal = true, .len_q = 4096, .len_k = 4096, .packed = true});
  }
  for (const int options : {0, kArithmetic | kDropout}) {  // one short sequence
    Typical alone{.options = options, .batch = 1, .len_q = 512, .len_k = 512};
    alone.heads_q = alone.heads_k = 4;
    add_forward(alone);
  }
  // Heads of a group as rows, and the kernel over a cache for few queries.
  for (const int64_t len_q : {4, 96})
    add_forward({.causal = true, .batch = 1, .heads_k = 4, .len_q = len_q, .len_k = 8192});
  add_forward({.dtype = DType::f16, .dim_qk = 192, .dim_v = 128});
  add_forward({.dtype = DType::f16, .dim_qk = 96, .dim_v = 96, .len_q = 4096, .len_k = 4096});
  // The options that need most registers in each kind of tile: arithmetic alone, dropout, a bias in shared memory, a
  // mask tensor, all of them, and elements loaded by consumers.
  add_forward({.options = kArithmetic, .causal = true, .len_q = 2048, .len_k = 2048});
  for (const int64_t dim : {64, 128}) {
    add_forward({.dim_qk = dim, .dim_v = dim, .options = kSoftcap});
    add_forward({.dim_qk = dim, .dim_v = dim, .options = kAlibi, .len_q = 3072, .len_k = 3072});
  }
  for (const int options : {kArithmetic | kDropout, kArithmetic | kBias, kArithmetic | kMaskTensor})
    add_forward({.options = options});
  add_forward({.dim_qk = 64, .dim_v = 64, .options = kMaskTensor});
  add_forward({.options = kAlibi, .causal = true, .len_q = 4096, .len_k = 4096});
  add_forward({.dtype = DType::f16, .dim_qk = 256, .dim_v = 256, .options = kMany});
  add_forward({.options = kMany, .len_k = 2050});
  // Short sequences, whose CTAs share an SM.
  const auto add_short = [&](int64_t dim, int64_t length, int options) {
    add_forward({.dim_qk = dim,
                 .dim_v = dim,
                 .options = options,
                 .causal = true,
                 .batch = 256,
                 .len_q = length,
                 .len_k = length});
  };
  add_short(32, 49, 0), add_short(64, 64, 0), add_short(64, 77, kMany), add_short(64, 128, 0);
  add_short(64, 128, kDropout), add_short(64, 64, kMaskTensor), add_short(128, 64, kMany);
  if (!thorough) return;
  add_short(32, 64, kBias), add_short(32, 128, kMany), add_short(64, 64, kDropout | kBias);
  for (const int64_t dim : {64, 192}) add_forward({.dim_qk = dim, .dim_v = dim, .options = kArithmetic | kMaskTensor});
  add_forward({.options = kMany, .batch = 1, .len_q = 96, .len_k = 8192});
  add_forward({.options = kArithmetic, .causal = true, .len_q = 16384, .len_k = 16384});
  for (const int64_t dim : {64, 256}) add_forward({.dim_qk = dim, .dim_v = dim, .options = kArithmetic | kDropout});
  for (const int64_t dim : {96, 128, 192}) {
    for (const int64_t length : {1024, 4096})
      add_forward({.dtype = DType::f16, .dim_qk = dim, .dim_v = dim, .len_q = length, .len_k = length});
    add_forward({.dtype = DType::f16, .dim_qk = dim, .dim_v = dim, .options = kMany});
  }
}

void add_hopper_backward(std::vector<Launch>& launches, const Arch& arch) {
  constexpr int kMany = kAllOptions & ~kScaleFirst;
  struct Backward {
    Typical problem;
    Reproducible reproducible = Reproducible::no;
  };
  // Each register budget with dQ and without it.
  std::vector<Backward> chosen{
      {{.dim_qk = 64, .dim_v = 64}},
      {{.dim_qk = 96, .dim_v = 96}},
      {{}},
      {{.dim_qk = 256, .dim_v = 256}},
      {{}, Reproducible::yes},
      {{.dim_qk = 192, .dim_v = 128}, Reproducible::yes},
      {{.dim_qk = 256, .dim_v = 256}, Reproducible::yes},
      {{.dim_qk = 64, .dim_v = 64, .options = kMany}},
      {{.dtype = DType::f16, .options = kSoftcap}},
      {{.options = kDropout}},
      {{.options = kBias | kMaskTensor}},
      {{.options = kMany}, Reproducible::yes},
      {{.dim_qk = 192, .dim_v = 192, .options = kMany}},
      {{.dtype = DType::f16, .dim_qk = 256, .dim_v = 256, .options = kSoftcap | kAlibi | kDropout}},
      // Sequences of one key tile.
      {{.dim_qk = 32, .dim_v = 32, .batch = 256, .len_q = 49, .len_k = 49}},
      {{.dim_qk = 64, .dim_v = 64, .batch = 256, .len_q = 64, .len_k = 64}},
      {{.dim_qk = 64, .dim_v = 64, .options = kMany & ~kMaskTensor, .batch = 256, .len_q = 64, .len_k = 64}},
      {{.dim_qk = 64, .dim_v = 64, .options = kMany & ~kMaskTensor, .batch = 256, .len_q = 64, .len_k = 128}},
      {{.dim_qk = 64, .dim_v = 64, .batch = 256, .len_q = 64, .len_k = 192}},
  };
  const std::vector<Backward> more{
      {{.dim_qk = 64, .dim_v = 64}, Reproducible::yes},
      {{.options = kBias}},
      {{.dtype = DType::f16, .dim_qk = 64, .dim_v = 128}, Reproducible::yes},
      {{.dtype = DType::f16, .dim_qk = 96, .dim_v = 96}, Reproducible::yes},
      {{.dtype = DType::f16, .dim_qk = 192, .dim_v = 192}, Reproducible::yes},
      {{.dim_qk = 64, .dim_v = 64, .options = kAlibi}},
      {{.options = kAlibi}},
      {{.dtype = DType::f16, .dim_qk = 64, .dim_v = 64, .options = kBias}},
      {{.dim_qk = 64, .dim_v = 64, .options = kMaskTensor}, Reproducible::yes},
  };
  if (scale() >= 3) chosen.insert(chosen.end(), more.begin(), more.end());
  for (const auto& [problem, reproducible] : chosen) {
    const BackwardPlan plan = plan_backward(backward_of(problem), arch, reproducible, KernelPreference::best);
    EXPECT_EQ(plan.family, &sm90_backward) << plan.family->name;
    for (const Launch* launch : {&plan.main, &plan.dq, &plan.bias, &plan.mask_lists, &plan.dq_mask_lists})
      add(launches, *launch);
  }
}

// Over a KV cache: on sm_90a the lists of tiles that need most registers, with the options that do, and the kernels for any
// alignment; on the others those that differ most. With new rows, which take more code; two without.
void add_cache_launches(std::vector<Launch>& launches, const Arch& arch) {
  const auto add_cache = [&](TypicalCache t, KernelPreference kernels = KernelPreference::best) {
    t.len_new = 1;
    for (t.batch = 1; t.batch <= 128; t.batch += 127) add(launches, plan_kv(cache_of(t), arch, 132, kernels).launch);
  };
  constexpr int kBoth = kSoftcap | kAlibi;
  add_cache({.options = kBoth, .heads_q = 1, .heads_k = 1});
  if (arch.number() == 120 && scale() < 3) return;  // its kernels are those of sm_80
  add_cache({.dim_qk = 576, .dim_v = 512, .heads_q = 64, .heads_k = 1, .v_in_k = true});
  add_cache({.dtype = DType::f32, .options = kBoth});
  add(launches, plan_merge(merge_of(DType::bf16, 128), arch).launch);
  if (!arch.wgmma) return;
  add_cache({.dim_qk = 256, .dim_v = 256, .options = kBoth, .heads_q = 1, .heads_k = 1});
  add_cache({.dim_qk = 576, .dim_v = 512, .options = kBoth, .heads_q = 1, .heads_k = 1, .v_in_k = true});
  add_cache({.dtype = DType::f32, .dim_qk = 256, .dim_v = 256, .options = kBoth, .heads_q = 1, .heads_k = 1});
  // Tiles of 128 and 256 rows need the most registers.
  for (const int64_t group : {64, 65, 129}) add_cache({.options = kBoth, .heads_q = group, .heads_k = 1});
  add_cache({.heads_q = 64, .heads_k = 1}, KernelPreference::portable);
  add_cache({.options = kScaleFirst});
  // Many queries: the kernels of forward, after one that appends.
  for (const TypicalCache& t : {TypicalCache{.batch = 4, .len_q = 2048, .page_size = 64, .len_new = 2048},
                                {.len_q = 192, .page_size = 64},
                                {.dim_qk = 64, .dim_v = 64, .batch = 2, .len_q = 512, .page_size = 64}}) {
    const KvPlan prefill = plan_kv(cache_of(t), arch, 132, KernelPreference::best);
    for (const Launch* launch : prefill.launches()) add(launches, *launch);
  }
  add_cache({.dim_qk = 512, .dim_v = 512, .heads_q = 8, .heads_k = 1});
  add_cache({.dtype = DType::f32, .aligned = false});
  if (scale() >= 3) {
    for (const int64_t group : {1, 64})
      add(launches,
          plan_kv(cache_of({.options = kBoth, .heads_q = group, .heads_k = 1}), arch, 132, KernelPreference::best)
              .launch);
    add_cache({.dim_qk = 64, .dim_v = 64, .heads_q = 32, .heads_k = 1});
    add_cache({.dim_qk = 256, .dim_v = 256, .options = kBoth, .heads_q = 64, .heads_k = 1});
    add_cache({.options = kBoth, .heads_q = 32, .heads_k = 1});
    add_cache({.heads_q = 1, .heads_k = 1}, KernelPreference::portable);
    add_cache({.dtype = DType::f64, .options = kBoth});
  }
  for (const DType type : {DType::f32, DType::f64}) add(launches, plan_merge(merge_of(type, 64), arch).launch);
}

std::vector<Launch> launches_for(const Arch& arch) {
  std::vector<Launch> launches;
  add_launches_of(launches, {.sink = true}, arch, Reproducible::yes);
  if (scale() < 1) return launches;
  add_cache_launches(launches, arch);
  // A row has more pieces than there are threads, and not a multiple of their number.
  if (arch.wgmma)
    add(launches, plan_forward(forward_of({.dtype = DType::f64, .dim_qk = 192, .dim_v = 96}), arch).launch);
  for (const Typical& t : problems_for(arch)) add_launches_of(launches, t, arch, Reproducible::no);
  if (arch.wgmma) add_hopper_forward(launches, arch), add_hopper_backward(launches, arch);
  return launches;
}

std::vector<Launch> all_launches_for(const Arch& arch) {
  std::vector<Launch> launches;
  for (const Typical& t : typical_problems())
    for (const Reproducible reproducible : {Reproducible::no, Reproducible::yes})
      add_launches_of(launches, t, arch, reproducible);
  for (const Typical& t : typical_problems()) {
    add(launches, plan_forward(forward_of(t), arch, KernelPreference::best).launch);
    for (const Reproducible reproducible : {Reproducible::no, Reproducible::yes}) {
      const BackwardPlan plan = plan_backward(backward_of(t), arch, reproducible, KernelPreference::best);
      add(launches, plan.main), add(launches, plan.dq);
    }
  }
  for (const TypicalCache& t : typical_caches())
    for (const SplitReduction reduction : {SplitReduction::exchange, SplitReduction::ticket})
      if (t.dtype != DType::f64 || t.dim_qk <= 128)
        add(launches, plan_kv(cache_of(t), arch, 132, KernelPreference::best, nullptr, reduction).launch);
  return launches;
}

class Kernels : public testing::TestWithParam<const char*> {};

bool updates_record() { return std::getenv("CUFLASH_UPDATE_KERNELS") != nullptr; }

test::KernelRecord& record() {
  static test::KernelRecord instance = test::read_record(CUFLASH_KERNELS_FILE);
  return instance;
}

struct Kernel {
  Launch launch;
  std::string name;
  test::KernelReport report{};  // the recorded one until it is compiled
  bool recorded = false, compiled = false;

  // One in so many is compiled although it is recorded: the record may be another compiler's of the same version.
  bool is_sampled() const { return std::stoul(report.sources.substr(0, 4), nullptr, 16) % 32 == 0; }
};

std::vector<Kernel> kernels_of(const std::vector<Launch>& launches) {
  std::vector<Kernel> kernels;
  for (const Launch& launch : launches) {
    Kernel kernel{launch, name_of(launch.kernel)};
    kernel.report.sources = test::digest_of(program_of(launch.kernel), nvrtc().version);
    const auto found = record().find(kernel.name);
    kernel.recorded = found != record().end() && found->second.sources == kernel.report.sources;
    if (kernel.recorded) kernel.report = found->second;
    kernels.push_back(kernel);
  }
  return kernels;
}

// Compiles the kernel, and returns what is wrong with it besides its shared memory.
std::string compile_fault(Kernel& kernel) {
  try {
    const KernelUse use = read_use(compile(program_of(kernel.launch.kernel)).log);
    kernel.compiled = true;
    kernel.report.registers = use.registers, kernel.report.static_shared = use.static_shared;
    std::string text;
    if (use.registers <= 0) text += " no report of ptxas;";
    if (use.spill_stores != 0 || use.spill_loads != 0)
      text += join(" spills ", use.spill_stores, " and ", use.spill_loads, " bytes;");
    if (use.stack != 0) text += join(" has ", use.stack, " bytes of stack;");
    for (const std::string& warning : use.warnings) text += " " + warning + ";";
    return text;
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
}

void compile_side_by_side(const std::vector<Kernel*>& kernels) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    for (size_t n; (n = next++) < kernels.size();) {
      const std::string text = compile_fault(*kernels[n]);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(text, "") << kernels[n]->name;
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned n = 1; n < std::thread::hardware_concurrency(); ++n) helpers.emplace_back(work);
  work();
}

bool is_as_recorded(const Kernel& kernel) {
  return !kernel.recorded || !kernel.compiled || kernel.report == record().at(kernel.name);
}

void write(const std::vector<Kernel>& kernels, const std::string& arch) {
  std::erase_if(record(), [&](const auto& entry) { return entry.first.find(":" + arch + ":") != std::string::npos; });
  for (const Kernel& kernel : kernels) record()[kernel.name] = kernel.report;
  test::write_record(CUFLASH_KERNELS_FILE, record());
}

TEST_P(Kernels, CompileWithoutSpillsOrComplaints) {
  CUFLASH_NEEDS_NVRTC();
  const Arch arch = arch_named(GetParam());
  // sm_89 has the instructions of sm_80, and as little shared memory as sm_120.
  if (arch.number() == 89 && scale() < 10)
    GTEST_SKIP() << "sm_80 and sm_120 stand for it; CUFLASH_TEST_SCALE=10 compiles all";
  std::vector<Kernel> kernels = kernels_of(scale() >= 10 ? all_launches_for(arch) : launches_for(arch));
  ASSERT_GE(kernels.size(), 5u);
  std::vector<Kernel*> needed, others;
  for (Kernel& kernel : kernels)
    (scale() >= 10 || !kernel.recorded || kernel.is_sampled() ? needed : others).push_back(&kernel);
  compile_side_by_side(needed);
  if (!std::all_of(kernels.begin(), kernels.end(), is_as_recorded)) compile_side_by_side(others);
  for (const Kernel& kernel : kernels)
    EXPECT_LE(kernel.report.static_shared + static_cast<int64_t>(kernel.launch.shared_bytes), arch.shared_per_block)
        << kernel.name << ": bytes of shared memory";
  const auto compiled = std::count_if(kernels.begin(), kernels.end(), [](const Kernel& k) { return k.compiled; });
  const auto unrecorded = std::count_if(kernels.begin(), kernels.end(), [](const Kernel& k) { return !k.recorded; });
  std::printf("%s: %zu kernels, of which %td were compiled\n", GetParam(), kernels.size(), compiled);
  if (updates_record() && !HasFailure()) write(kernels, GetParam());
  else if (unrecorded != 0)
    std::printf("%td are not in cuda_kernels.txt: CUFLASH_UPDATE_KERNELS=1 records them\n", unrecorded);
}

INSTANTIATE_TEST_SUITE_P(Archs, Kernels, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& param) { return std::string(param.param); });

// A kernel is compiled again if anything that its machine code depends on has changed.
TEST(KernelRecord, DigestIsThatOfWhatIsCompiled) {
  const Program small = test::small_program();
  const std::string digest = test::digest_of(small, 1300);
  EXPECT_EQ(digest, test::digest_of(small, 1300));
  EXPECT_NE(digest, test::digest_of(small, 1301));
  EXPECT_NE(digest, test::digest_of(test::small_program(1), 1300));
  const auto changed = [&](const std::string& before, const char* arch = "sm_90a") {
    return test::digest_of({small.name, arch_named(arch), before + small.source}, 1300);
  };
  EXPECT_EQ(digest, changed("// a comment\n\n  // another\n"));
  EXPECT_NE(digest, changed("", "sm_80"));
  // config.h is reached through each of these, and one of them has more.
  const std::string direct = changed("#include \"config.h\"\n"), more = changed("#include \"params.h\"\n");
  EXPECT_NE(direct, more);
  EXPECT_NE(direct, changed("#include \"no_such_header.h\"\n"));
}

TEST(KernelRecord, IsReadAsItIsWritten) {
  const std::string path = testing::TempDir() + "kernel_record.txt";
  const test::KernelRecord record{{"a:sm_80:f32,1", {"0123456789abcdef", 255, 16}}, {"b:sm_90a:bf16,2", {"f", 24, 0}}};
  test::write_record(path, record);
  EXPECT_EQ(test::read_record(path), record);
  std::ofstream(path, std::ios::app) << "c:sm_80:f32,1 registers many\n";
  EXPECT_THROW(test::read_record(path), std::runtime_error);
  std::remove(path.c_str());
  EXPECT_TRUE(test::read_record(path).empty());
}

// The first test depends on this parser.
TEST(KernelUse, IsReadFromAReport) {
  const KernelUse use = read_use(
      "ptxas info    : 24 bytes gmem\n"
      "ptxas info    : Compiling entry function 'cuflash_kernel' for 'sm_90a'\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
      "ptxas         .     32 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 221 registers, used 1 barriers, 32 bytes cumulative stack size, 128 bytes smem\n");
  EXPECT_EQ(use.registers, 221);
  EXPECT_EQ(use.stack, 32);
  EXPECT_EQ(use.spill_stores, 12);
  EXPECT_EQ(use.spill_loads, 8);
  EXPECT_EQ(use.static_shared, 128);
  ASSERT_EQ(use.warnings.size(), 1u);
  EXPECT_NE(use.warnings[0].find("C7510"), std::string::npos);
}

TEST(KernelUse, ARealSpillIsSeen) {
  CUFLASH_NEEDS_NVRTC();
  Program program = test::small_program();
  program.source = join("extern \"C\" __global__ void __launch_bounds__(1024) ", kEntryName,
                        "(float* p) {\n  float a[200];\n#pragma unroll\n  for (int n = 0; n < 200; ++n) a[n] = p[n * "
                        "1024 + threadIdx.x];\n"
                        "  __syncthreads();\n#pragma unroll\n  for (int n = 0; n < 200; ++n) p[n * 1024 + 1023 - "
                        "threadIdx.x] = a[n];\n}\n");
  const KernelUse use = read_use(compile(program).log);
  EXPECT_LE(use.registers, 64);
  EXPECT_GT(use.spill_stores, 0);
  EXPECT_GT(use.spill_loads, 0);
}

}  // namespace
}  // namespace cuflash::cuda
