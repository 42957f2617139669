// The memory argument of the algorithm, measured: extra memory grows with the length, not with its square.
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/io/memory_profile.h"
#include "cpu/plan/workspace.h"
#include "reference/naive.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

constexpr int64_t kDim = 64;
constexpr size_t kMegabyte = size_t{1} << 20;

struct Tensors {
  std::vector<float> q, k, v, o, lse, dout, dq, dk, dv;
  int64_t length;

  explicit Tensors(int64_t length) : length(length) {
    for (auto* t : {&q, &k, &v, &o, &dout, &dq, &dk, &dv}) t->assign(static_cast<size_t>(length * kDim), 0.25f);
    lse.assign(static_cast<size_t>(length), 0.0f);
  }
  Tensor of(std::vector<float>& t) const { return bhsd(t.data(), 1, 1, length, kDim); }
  Attention attention() { return {.q = of(q), .k = of(k), .v = of(v)}; }
  ForwardOutputs outputs() { return {.o = of(o), .lse = contiguous(lse.data(), 1, 1, length)}; }
  BackwardTensors gradients() {
    return {.o = of(o),
            .lse = contiguous(lse.data(), 1, 1, length),
            .dout = of(dout),
            .dq = of(dq),
            .dk = of(dk),
            .dv = of(dv)};
  }
};

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Maps every page of the program and its libraries. A forked child starts without them, and code that runs for the first
// time counts as resident like data: 1 to 2 MB in this program, more on x86-64, which has kernels for four instruction sets.
void map_program() {
  std::ifstream maps("/proc/self/maps");
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string mode, offset, device, inode, path;
    words >> std::hex >> begin >> dash >> end >> mode >> offset >> device >> inode >> path;
    if (mode.empty() || mode[0] != 'r' || path.empty() || path[0] != '/') continue;
    for (uintptr_t at = begin; at < end; at += page) static_cast<void>(*reinterpret_cast<const volatile char*>(at));
  }
}

// Linux counts resident pages per CPU and adds the counts up from time to time: with two CPUs a peak is off by at most
// 256 KB, with many by megabytes.
constexpr size_t kCountingError = size_t{256} << 10;
void stay_on_two_cpus() {
  cpu_set_t allowed, two;
  CPU_ZERO(&two);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &two);
  sched_setaffinity(0, sizeof two, &two);
}

// The number of bytes by which a call raises the memory peak of its process, including thread stacks and the allocator.
// Each measurement runs in a separate process, because a peak never falls.
template <class Call>
size_t peak_growth(Call call) {
  int channel[2];
  EXPECT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  if (child == 0) {
    cpu::Workspace::release_kept_block();  // a block kept by an earlier call would hide what this call allocates
    stay_on_two_cpus();
    map_program();
    const long before = peak_kilobytes();
    call();
    const long growth = peak_kilobytes() - before;
    const bool sent = write(channel[1], &growth, sizeof growth) == sizeof growth;
    _exit(sent ? 0 : 1);
  }
  long growth = -1;
  close(channel[1]);
  EXPECT_EQ(read(channel[0], &growth, sizeof growth), static_cast<ssize_t>(sizeof growth));
  close(channel[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return static_cast<size_t>(growth) * 1024;
}

struct Sample {
  size_t forward, backward;
};

// Four times the length may take four times the memory, and some pages for what does not depend on the length.
void expect_linear(const char* what, const Sample& s4096, const Sample& s16384, size_t slack) {
  EXPECT_LE(s16384.forward, 4 * s4096.forward + slack) << what;
  EXPECT_LE(s16384.backward, 4 * s4096.backward + slack) << what;
  // One Sq x Sk matrix of floats is 1 GB here; the inputs are 4 MB each.
  EXPECT_LT(s16384.forward, 16 * kMegabyte) << what;
  // Up to eight ranges of keys have their own dQ, 4 MB each.
  EXPECT_LT(s16384.backward, 48 * kMegabyte) << what;
  std::printf("%s: S=4096 forward %zu backward %zu, S=16384 forward %zu backward %zu bytes\n", what, s4096.forward,
              s4096.backward, s16384.forward, s16384.backward);
}

TEST(ExtraMemory, WorkspaceIsLinearInTheLength) {
  const auto sample = [](int64_t length) {
    Tensors t(length);
    const Execution execution{.num_threads = 4};
    return Sample{workspace_size(t.attention(), t.outputs(), execution),
                  workspace_size(t.attention(), t.gradients(), execution)};
  };
  const Sample s4096 = sample(4096), s8192 = sample(8192), s16384 = sample(16384);
  expect_linear("workspace", s4096, s16384, 0);
  EXPECT_LE(s16384.backward - s8192.backward, 2 * (s8192.backward - s4096.backward));
  EXPECT_LE(s16384.forward, 2 * s4096.forward);  // tiles of one worker each: the length hardly matters
}

TEST(ExtraMemory, MeasuredPeakIsLinearInTheLength) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the call";
  const auto sample = [](int64_t length) {
    Tensors t(length);
    return Sample{peak_growth([&] { flash_attention_forward(t.attention(), t.outputs(), {.num_threads = 2}); }),
                  peak_growth([&] { flash_attention_backward(t.attention(), t.gradients(), {.num_threads = 2}); })};
  };
  expect_linear("measured", sample(4096), sample(16384), 2 * kCountingError);
}

// Compares what `cuflash memory` reports with measurements, for a call and for naive attention.
TEST(ExtraMemory, ProfileIsWhatIsMeasured) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the call";
  constexpr int64_t kLength = 2048;
  Tensors t(kLength);
  cli::ExplainOptions options;
  options.heads = 1, options.seq_q = kLength, options.dim = kDim, options.lse = true;
  options.execution.num_threads = 2;
  const auto expect_profile = [&](size_t call, size_t naive, double inputs, double outputs) {
    const cli::MemoryProfile profile = cli::memory_profile(options);
    EXPECT_EQ(profile.inputs, inputs);
    EXPECT_EQ(profile.outputs, outputs);
    const auto slack = static_cast<double>(kMegabyte);
    constexpr size_t kThreads = size_t{256} << 10;  // their stacks, and what they allocate
    EXPECT_LE(static_cast<double>(call), profile.workspace + kThreads + kCountingError);
    EXPECT_GE(static_cast<double>(call + kCountingError), profile.workspace / 2);  // a worker may stay idle
    // Naive attention also has copies of rows, and results in double.
    EXPECT_GE(static_cast<double>(naive), profile.naive_matrices - slack);
    EXPECT_LE(static_cast<double>(naive), 1.25 * profile.naive_matrices);
    EXPECT_GT(profile.saved(), 0.5);
    std::printf("measured %zu bytes, profile %.0f; naive %zu, profile %.0f\n", call, profile.workspace, naive,
                profile.naive_matrices);
  };
  constexpr double kRows = kLength * kDim * 4, kLse = kLength * 4;
  expect_profile(peak_growth([&] { flash_attention_forward(t.attention(), t.outputs(), options.execution); }),
                 peak_growth([&] { reference::naive_forward(t.attention()); }), 3 * kRows, kRows + kLse);
  options.backward = true;
  const BackwardTensors given = t.gradients();
  expect_profile(peak_growth([&] { flash_attention_backward(t.attention(), given, options.execution); }),
                 peak_growth([&] { reference::naive_backward(t.attention(), given.dout, {}); }), 5 * kRows + kLse,
                 3 * kRows);
}

// Shows that the measurement above detects memory that a call allocates.
TEST(ExtraMemory, MeasurementSeesAnAllocation) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the call";
  const size_t growth = peak_growth([] {
    std::vector<char> block(32 * kMegabyte, 1);
    EXPECT_EQ(block.back(), 1);
  });
  EXPECT_GE(growth, 31 * kMegabyte);
}

// With a workspace of the queried size a call allocates nothing that grows, whatever it computes.
TEST(ExtraMemory, GivenWorkspaceIsEnough) {
  Tensors t(1000);
  const Execution threads{.num_threads = 2};
  const size_t bytes = std::max(workspace_size(t.attention(), t.outputs(), threads),
                                workspace_size(t.attention(), t.gradients(), threads));
  std::vector<char> block(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(block.data());
  Execution given = threads;
  given.workspace = block.data() + (64 - address % 64) % 64, given.workspace_size = bytes;
  flash_attention_forward(t.attention(), t.outputs(), given);
  flash_attention_backward(t.attention(), t.gradients(), given);
  const auto with = std::vector{t.o, t.dq, t.dk, t.dv};
  flash_attention_forward(t.attention(), t.outputs(), threads);
  flash_attention_backward(t.attention(), t.gradients(), threads);
  EXPECT_EQ(with, (std::vector{t.o, t.dq, t.dk, t.dv}));
}

// All pairs of 65,536 queries and keys at D = 64 are 1.1e12 operations, too many for a test of seconds. So once half of
// the pairs (causal) with a head size of 1, and once the head size of 64 with a window.
void expect_long_run(int64_t dim, int64_t window_left) {
  const int64_t length = 65536;
  Inputs in = dense({.len_q = length, .len_k = length, .dim = dim, .dim_v = dim});
  in.attention.causal = true;
  in.attention.window_left = window_left;
  Buffer o(in.dout.view()), lse(contiguous<void>(nullptr, DType::f32, 1, 1, length));
  flash_attention_forward(in.attention, {.o = o.view(), .lse = lse.view()});

  // The last queries see the same keys in a smaller problem, since alignment is to the end of the keys.
  Attention last = in.attention;
  last.q = narrow(last.q, 2, length - 3, 3);
  const Results expected = run(last, narrow(in.dout.view(), 2, length - 3, 3));
  expect_equals_oracle(last, narrow(in.dout.view(), 2, length - 3, 3), {}, expected);
  const std::vector<double> end = values_of(narrow(o.view(), 2, length - 3, 3));
  for (size_t n = 0; n < end.size(); ++n) EXPECT_NEAR(end[n], expected.o[n], 1e-5);
  for (double value : o.read()) ASSERT_TRUE(std::isfinite(value));
}

TEST(LongSequence, Forward65536Causal) {
  if (kSanitized) GTEST_SKIP() << "2e9 pairs are too many for instrumented code";
  expect_long_run(1, -1);
}
TEST(LongSequence, Forward65536HeadSize64WithAWindow) {
  if (kSanitized) GTEST_SKIP() << "2e10 operations are too many for instrumented code";
  expect_long_run(64, 1000);
}

}  // namespace
}  // namespace cuflash::test
