// Times of candidate tiles of the Hopper forward kernel, so that the table of src/cuda/plan_hopper.cpp can be derived
// anew on another board.
//
//   cuflash_tiles [--dim 64,128,256] [--len 512,2048,8192] [--causal 0,1] [--seconds 0.02] [warpgroups,tile_k,stages,order ...]
//
// Without candidates a list for each head size. Every batch has 16384 tokens and a hidden size of 2048, bf16, in memory
// [B, S, H, D]. Candidates take turns, a figure is the median of five of them; each result is held against that of the
// portable kernel first. A candidate that does not fit or whose result is wrong is named and left out; one that does not
// come back within some seconds ends the process.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check/cuda_session.h"
#include "check/device.h"
#include "cuda/cache.h"
#include "cuda/compile.h"
#include "cuda/launch.h"
#include "cuda/params_of.h"
#include "cuda/plan_hopper.h"
#include "cuda/stream.h"
#include "error.h"
#include "numeric.h"
#include "problem/describe.h"

namespace cuflash {
namespace {

constexpr int64_t kTokens = 16384, kHidden = 2048;
constexpr int kTurns = 5;
constexpr double kPatience = 20;        // seconds for a launch
constexpr double kLargestError = 0.02;  // of the norm: two kernels of bf16 differ by less than half of that

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A kernel that waits for ever cannot be stopped, but the process can.
class Watchdog {
 public:
  void watch(const std::string& what) {
    what_ = what;
    since_ = Clock::now().time_since_epoch().count();
  }
  void rest() { since_ = 0; }

 private:
  std::string what_;
  std::atomic<int64_t> since_{0};
  std::jthread thread_{[this](std::stop_token stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
      const int64_t since = since_;
      if (since == 0 || seconds_since(Clock::time_point(Clock::duration(since))) < kPatience) continue;
      std::printf("%s does not come back\n", what_.c_str());
      std::fflush(stdout);
      ::_exit(1);
    }
  }};
};

std::vector<int> numbers(const std::string& text) {
  std::vector<int> values;
  for (size_t at = 0; at < text.size();) {
    size_t used = 0;
    values.push_back(std::stoi(text.substr(at), &used));
    at += used + 1;
  }
  return values;
}

struct Options {
  std::vector<int> dims{64, 128, 256}, lengths{512, 2048, 8192}, causal{0, 1};
  double seconds = 0.02;  // of launches in a turn
  std::vector<HopperForwardConfig> candidates;
};

HopperForwardConfig candidate(const std::vector<int>& v) {
  if (v.size() != 4) reject("candidate: must be warpgroups,tile_k,stages,order");
  HopperForwardConfig c{};
  c.warpgroups = v[0], c.tile_k = v[1], c.stages = v[2], c.order = v[3];
  return c;
}

Options parse(int count, char** words) {
  Options o;
  for (int n = 1; n < count; ++n) {
    const std::string word = words[n];
    if (!word.starts_with("--")) {
      o.candidates.push_back(candidate(numbers(word)));
      continue;
    }
    if (n + 1 == count) reject(word, ": needs a value");
    const std::string value = words[++n];
    if (word == "--dim") o.dims = numbers(value);
    else if (word == "--len") o.lengths = numbers(value);
    else if (word == "--causal") o.causal = numbers(value);
    else if (word == "--seconds") o.seconds = std::stod(value);
    else reject(word, ": may be --dim, --len, --causal or --seconds");
  }
  return o;
}

std::vector<HopperForwardConfig> usual_candidates(int dim) {
  // order: kTurns is 1, kHoldWait 2
  std::vector<std::vector<int>> lists;
  if (dim <= 64)
    lists = {{3, 128, 4, 3}, {3, 128, 4, 1}, {3, 128, 4, 2}, {3, 112, 4, 3},
             {4, 64, 4, 3},  {4, 64, 4, 1},  {2, 128, 4, 3}};
  else if (dim <= 128)
    lists = {{3, 80, 4, 3}, {3, 80, 4, 1}, {3, 64, 4, 3}, {2, 128, 3, 3}, {2, 128, 3, 1}, {2, 96, 3, 3}, {2, 64, 4, 3}};
  else if (dim <= 192) lists = {{2, 112, 2, 3}, {2, 96, 2, 3}, {2, 80, 2, 3}, {2, 64, 3, 3}};
  else lists = {{2, 80, 2, 3}, {2, 80, 2, 1}, {2, 80, 2, 2}, {2, 64, 2, 3}, {2, 48, 3, 3}};
  std::vector<HopperForwardConfig> configs;
  for (const auto& list : lists) configs.push_back(candidate(list));
  return configs;
}

std::string name_of(const HopperForwardConfig& c) {
  return join(c.warpgroups, ",", c.tile_k, ",", c.stages, ",", c.order);
}

// Memory for q, k, v, and for the outputs of two kernels; filled once.
class Tensors {
 public:
  explicit Tensors(check::CudaSession& session) : session_(session) {
    constexpr size_t kBytes = kTokens * kHidden * 2;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(kTokens * kHidden);
    for (std::byte** input : {&q_, &k_, &v_}) {
      for (uint16_t& x : values) x = float_to_bf16(normal(random));
      *input = session.allocate(kBytes);
      session.upload(*input, reinterpret_cast<std::byte*>(values.data()), kBytes);
      session.wait();
    }
    for (std::byte** output : {&expected_, &o_}) *output = session.allocate(kBytes);
  }

  enum class Output { expected, candidate };
  ForwardProblem problem(int dim, int length, bool causal, Output output) const {
    const int64_t batch = kTokens / length, heads = kHidden / dim;
    const auto view = [&](std::byte* data) { return bshd<void>(data, DType::bf16, batch, length, heads, dim); };
    const Attention attention{.q = view(q_), .k = view(k_), .v = view(v_), .causal = causal};
    const ForwardOutputs outputs{.o = view(output == Output::expected ? expected_ : o_)};
    return describe(detail::to_c(attention), detail::to_c(outputs), Place{0});
  }
  // What a candidate does not write is then wrong.
  void clear() const { cuda::zero(o_, kTokens * kHidden * 2, session_.stream()); }
  // Of the norm, over what the problem writes: batches and heads may not fill the memory.
  double error(const ForwardProblem& p) const {
    const std::vector<uint16_t> a = download(expected_), b = download(o_);
    const auto written = static_cast<size_t>(p.batch * p.len_q * p.heads_q * p.dim_v);
    double difference = 0, norm = 0;
    for (size_t n = 0; n < written; n += 13) {  // every row and every column has its share of these
      const double x = bf16_to_float(a[n]), y = bf16_to_float(b[n]);
      difference += (x - y) * (x - y), norm += x * x;
    }
    return std::sqrt(difference / norm);
  }

 private:
  std::vector<uint16_t> download(const std::byte* data) const {
    std::vector<uint16_t> values(kTokens * kHidden);
    session_.download(reinterpret_cast<std::byte*>(values.data()), data, values.size() * 2);
    session_.wait();
    return values;
  }

  check::CudaSession& session_;
  std::byte *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *expected_ = nullptr, *o_ = nullptr;
};

class Sweep {
 public:
  Sweep(const Options& options, check::CudaSession& session, const cuda::DeviceGuard& guard)
      : options_(options), session_(session), guard_(guard), tensors_(session) {}

  void run() {
    for (const int dim : options_.dims) {
      std::vector<HopperForwardConfig> configs =
          options_.candidates.empty() ? usual_candidates(dim) : options_.candidates;
      compile(configs, dim);
      for (const int causal : options_.causal)
        for (const int length : options_.lengths) time_problem(configs, dim, length, causal != 0);
    }
  }

 private:
  const cuda::Arch& arch() const { return guard_.state().arch; }

  // All at once: a compiler takes seconds for each. Those that spill or do not fit are left out.
  void compile(std::vector<HopperForwardConfig>& configs, int dim) {
    const ForwardProblem p = tensors_.problem(dim, 512, false, Tensors::Output::candidate);
    std::vector<std::string> faults(configs.size());
    {
      std::vector<std::jthread> threads;
      for (size_t n = 0; n < configs.size(); ++n)
        threads.emplace_back([&, n] { faults[n] = fault(cuda::plan_hopper_forward(p, arch(), configs[n])); });
    }
    size_t kept = 0;
    for (size_t n = 0; n < configs.size(); ++n) {
      if (faults[n].empty()) configs[kept++] = configs[n];
      else std::printf("D=%d %s left out: %s\n", dim, name_of(configs[n]).c_str(), faults[n].c_str());
    }
    configs.resize(kept);
  }
  std::string fault(const cuda::ForwardPlan& plan) const {
    if (plan.launch.shared_bytes > arch().shared_per_block)
      return join("needs ", plan.launch.shared_bytes, " bytes of shared memory");
    try {
      const cuda::KernelUse use = cuda::read_use(cuda::compile(cuda::program_of(plan.launch.kernel)).log);
      if (use.spill_stores > 0) return join("spills ", use.spill_stores, " bytes");
      if (!use.warnings.empty()) return use.warnings.front();
      const cuda::DeviceGuard current(guard_.state());  // of this thread
      cuda::cached_kernel(plan.launch.kernel, guard_.state(), plan.launch.shared_bytes);
      return "";
    } catch (const FlashAttentionError& error) {
      return error.what();
    }
  }

  void launch(const ForwardProblem& p, const cuda::ForwardPlan& plan) {
    const HopperForwardParams params =
        cuda::hopper_forward_params(p, plan, cuda::grid_of(plan.launch, guard_.state().num_sms), nullptr);
    cuda::launch(guard_, {&plan.launch}, &params, sizeof params, session_.stream());
  }
  double seconds(const ForwardProblem& p, const cuda::ForwardPlan& plan, int launches) {
    const auto start = Clock::now();
    for (int n = 0; n < launches; ++n) launch(p, plan);
    session_.wait();
    return seconds_since(start) / launches;
  }

  void time_problem(const std::vector<HopperForwardConfig>& configs, int dim, int length, bool causal) {
    const std::string what = join("D=", dim, " S=", length, causal ? " causal" : "");
    const ForwardProblem reference = tensors_.problem(dim, length, causal, Tensors::Output::expected);
    const cuda::ForwardPlan portable = cuda::plan_forward(reference, arch(), cuda::Kernels::portable);
    const ForwardParams params = cuda::forward_params(reference, nullptr);
    cuda::launch(guard_, {&portable.launch}, &params, sizeof params, session_.stream());
    session_.wait();

    const ForwardProblem p = tensors_.problem(dim, length, causal, Tensors::Output::candidate);
    std::vector<cuda::ForwardPlan> plans;
    std::vector<std::string> names;
    for (const HopperForwardConfig& config : configs) {
      const cuda::ForwardPlan plan = cuda::plan_hopper_forward(p, arch(), config);
      tensors_.clear();
      watchdog_.watch(join(what, " ", name_of(config)));
      seconds(p, plan, 1);
      watchdog_.rest();
      const double error = tensors_.error(p);
      if (error < kLargestError) plans.push_back(plan), names.push_back(name_of(config));
      else std::printf("%s %s is WRONG: differs by %.4f of the norm\n", what.c_str(), name_of(config).c_str(), error);
    }
    std::vector<std::vector<double>> times(plans.size());
    for (int turn = 0; turn < kTurns; ++turn)
      for (size_t n = 0; n < plans.size(); ++n) {
        watchdog_.watch(join(what, " ", names[n]));
        const double once = seconds(p, plans[n], 1);
        times[n].push_back(seconds(p, plans[n], std::max(1, static_cast<int>(options_.seconds / once))));
        watchdog_.rest();
      }
    const double flops = 4.0 * static_cast<double>(p.batch * p.len_q * p.len_k * p.heads_q * dim) / (causal ? 2 : 1);
    for (size_t n = 0; n < plans.size(); ++n) {
      std::nth_element(times[n].begin(), times[n].begin() + kTurns / 2, times[n].end());
      std::printf("%s | %s | %.1f TFLOP/s\n", what.c_str(), names[n].c_str(), flops / times[n][kTurns / 2] / 1e12);
    }
    std::fflush(stdout);
  }

  const Options& options_;
  check::CudaSession& session_;
  const cuda::DeviceGuard& guard_;
  Tensors tensors_;
  Watchdog watchdog_;
};

int run(int count, char** words) {
  const Options options = parse(count, words);
  if (const std::string why = check::why_no_cuda(); !why.empty()) {
    std::printf("cuflash_tiles: skipped, there is no GPU: %s\n", why.c_str());
    return 0;
  }
  check::CudaSession& session = check::CudaSession::of_thread();
  const cuda::DeviceGuard guard(cuda::device(0));
  if (guard.state().arch.number() != 90) {
    std::printf("cuflash_tiles: skipped, %s is not a Hopper GPU\n", guard.state().name.c_str());
    return 0;
  }
  Sweep(options, session, guard).run();
  return 0;
}

}  // namespace
}  // namespace cuflash

int main(int count, char** words) {
  try {
    return cuflash::run(count, words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuflash_tiles: %s\n", error.what());
    return 1;
  }
}
