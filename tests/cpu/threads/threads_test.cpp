// Results do not depend on how the work is run: thread counts, the caller's executors, concurrent callers, forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/shared/support.h"

namespace cuflash {
namespace {

using test::Results;
using test::same_bits;

// A problem and what one thread computes for it.
struct NamedProblem {
  std::string name;
  test::Inputs in;
  std::vector<float> bias{}, sink{};
  Results serial{};

  NamedProblem(std::string name, test::Inputs inputs) : name(std::move(name)), in(std::move(inputs)) {}
  NamedProblem(const NamedProblem&) = delete;

  Results run(const Execution& execution) const { return test::run(in, {.execution = execution}); }
  bool gives_the_serial_result(const Execution& execution) const { return same_bits(run(execution), serial); }
};
using ProblemPointer = std::unique_ptr<NamedProblem>;

ProblemPointer with_serial_result(ProblemPointer p) {
  p->serial = p->run({.num_threads = 1});
  return p;
}

ProblemPointer one_head(int64_t length) {
  test::Sizes sizes{.len_q = length, .len_k = length, .dim = 64, .dim_v = 64};
  const std::string name = "one head of length " + std::to_string(length);
  return with_serial_result(std::make_unique<NamedProblem>(name, test::dense(sizes)));
}

// Enough tiles and heads that every worker gets several, in an order that differs from run to run.
ProblemPointer many_heads(DType dtype, int64_t dim = 40, int64_t bias_heads = 1) {
  const test::Sizes sizes{
      .batch = 2, .heads_q = 6, .heads_k = 2, .len_q = 80, .len_k = 300, .dim = dim, .dim_v = 32, .dtype = dtype};
  auto p = std::make_unique<NamedProblem>(std::string("many heads of ") + name_of(dtype), test::dense(sizes));
  Attention& a = p->in.attention;
  a.causal = true, a.dropout_p = 0.1, a.dropout_seed = 3;
  // Summed over batch and heads, or over the batch: one thread does it in another pass than many, in the same order.
  p->bias.resize(static_cast<size_t>(bias_heads * sizes.len_q * sizes.len_k));
  p->sink.resize(static_cast<size_t>(sizes.heads_q));
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  for (float& value : p->bias) value = normal(bits);
  for (float& value : p->sink) value = normal(bits);
  a.bias = contiguous(std::as_const(p->bias).data(), 1, bias_heads, sizes.len_q, sizes.len_k);
  a.sink = contiguous(std::as_const(p->sink).data(), sizes.heads_q);
  return with_serial_result(std::move(p));
}

ProblemPointer packed_sequences() {
  const test::Sizes sizes{.heads_q = 4, .heads_k = 4, .len_q = 260, .len_k = 300, .dim = 32, .dim_v = 32};
  return with_serial_result(std::make_unique<NamedProblem>(
      "packed sequences", test::packed(sizes, {0, 1, 130, 130, 250}, {0, 70, 71, 170, 299})));
}

std::vector<ProblemPointer> problems() {
  std::vector<ProblemPointer> all;
  for (const int64_t length : {32, 33, 200}) all.push_back(one_head(length));
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    if (dtype == DType::f64 && test::kThreadSanitized) continue;  // shared out like f32
    for (const int64_t bias_heads : {1, 6}) all.push_back(many_heads(dtype, 40, bias_heads));
  }
  if (!test::kThreadSanitized) all.push_back(many_heads(DType::f32, 64, 1));  // shared out like a head size of 40
  all.push_back(packed_sequences());
  return all;
}

TEST(Threads, TheirNumberChangesNoBit) {
  using Counts = std::vector<int>;
  const Counts counts = test::kSanitized ? Counts{2, 7} : Counts{1, 2, 3, 4, 7, 0};
  for (const auto& problem : problems()) {
    for (const int threads : counts)
      EXPECT_TRUE(problem->gives_the_serial_result({.num_threads = threads}))
          << problem->name << ", " << threads << " threads";
  }
}

// Executors a caller may hand in. `most` is the largest number of indices one was asked to run.
struct Executor {
  cuflash_parallel_for run;
  std::atomic<int64_t> most = 0;

  Execution execution(int32_t threads) {
    return {.num_threads = threads, .parallel_for = run, .parallel_for_context = this};
  }
  void saw(int64_t n) {
    if (n > most) most = n;
  }
};

void in_order(void* self, int64_t n, cuflash_parallel_body body, void* body_context) {
  static_cast<Executor*>(self)->saw(n);
  for (int64_t i = 0; i < n; ++i) body(body_context, i);
}

void backwards(void* self, int64_t n, cuflash_parallel_body body, void* body_context) {
  static_cast<Executor*>(self)->saw(n);
  for (int64_t i = n; i-- > 0;) body(body_context, i);
}

void a_thread_each(void* self, int64_t n, cuflash_parallel_body body, void* body_context) {
  static_cast<Executor*>(self)->saw(n);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(body, body_context, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, AnExecutorOfTheCallersChangesNoBit) {
  const std::pair<const char*, cuflash_parallel_for> executors[] = {
      {"in order", in_order}, {"backwards", backwards}, {"a thread each", a_thread_each}};
  const auto all = problems();
  for (const auto& [name, function] : executors) {
    if (test::kSanitized && function != a_thread_each) continue;  // one thread alone
    Executor executor{function};
    for (const auto& problem : all)
      EXPECT_TRUE(problem->gives_the_serial_result(executor.execution(5))) << problem->name << ", " << name;
    EXPECT_GT(executor.most, 1) << name << " never had anything to share out";
    EXPECT_LE(executor.most, 5) << name;
  }
}

TEST(Threads, CallersAtTheSameTimeGetWhatEachGetsAlone) {
  const auto all = problems();
  constexpr size_t kCallers = 4, kCalls = 5;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t call = 0; call < kCalls; ++call) {
        const int threads = static_cast<int>(1 + (caller * kCalls + call) % 3);
        wrong += !all[(caller + call) % all.size()]->gives_the_serial_result({.num_threads = threads});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0) << "of " << kCallers * kCalls << " calls";
}

// An executor whose tasks call the library themselves, with its own pool.
struct Nesting {
  const NamedProblem& inner;
  std::atomic<int> calls = 0, wrong = 0;

  static void run(void* self, int64_t n, cuflash_parallel_body body, void* body_context) {
    auto& nesting = *static_cast<Nesting*>(self);
    for (int64_t i = 0; i < n; ++i) {
      body(body_context, i);
      ++nesting.calls;
      nesting.wrong += !nesting.inner.gives_the_serial_result({.num_threads = 3});
    }
  }
};

TEST(Threads, ACallInsideACallReturns) {
  const auto outer = many_heads(DType::f32), inner = test::kSanitized ? one_head(200) : many_heads(DType::bf16);
  Nesting nesting{*inner};
  const Execution execution{.num_threads = 2, .parallel_for = Nesting::run, .parallel_for_context = &nesting};
  EXPECT_TRUE(outer->gives_the_serial_result(execution));
  EXPECT_GT(nesting.calls, 1);
  EXPECT_EQ(nesting.wrong, 0);
}

// 0 if a child of this process computes the right result; an alarm ends a child that hangs.
int exit_status_of_child(const NamedProblem& problem) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(problem.gives_the_serial_result({.num_threads = 4}) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Threads, AForkedChildHasThreadsOfItsOwn) {
  if (test::kThreadSanitized) GTEST_SKIP() << "ThreadSanitizer does not let a forked child start threads";
  const auto problem = many_heads(DType::f32);
  EXPECT_TRUE(problem->gives_the_serial_result({.num_threads = 4}));  // the parent's pool is up
  EXPECT_EQ(exit_status_of_child(*problem), 0);
  EXPECT_TRUE(problem->gives_the_serial_result({.num_threads = 4})) << "in the parent, after the fork";

  // The other thread allocates nothing while it computes: in a child forked while another thread was allocating,
  // AddressSanitizer's allocator would stay locked forever.
  const Attention& attention = problem->in.attention;
  test::Buffer o(problem->in.dout.view());
  const ForwardOutputs outputs{.o = o.view()};
  Execution execution{.num_threads = 3};
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(workspace_size(attention, outputs, execution) / sizeof(Line) + 1);
  execution.workspace = workspace.data(), execution.workspace_size = workspace.size() * sizeof(Line);

  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) flash_attention_forward(attention, outputs, execution);
  });
  for (int n = 0; n < 5; ++n) EXPECT_EQ(exit_status_of_child(*problem), 0) << "forked during a call";
  stop = true;
  busy.join();
}

// Exits with the number of workers a call without num_threads gets when the environment says `value`.
[[noreturn]] void exit_with_default_workers(const char* value) {
  setenv("CUFLASH_NUM_THREADS", value, 1);
  Executor executor{in_order};
  many_heads(DType::f32)->run(executor.execution(0));
  _exit(static_cast<int>(executor.most.load()));
}

TEST(ThreadsDeathTest, TheEnvironmentSetsTheirNumber) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // a separate process, since the variable is read once
  EXPECT_EXIT(exit_with_default_workers("3"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(exit_with_default_workers("1"), testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace cuflash
