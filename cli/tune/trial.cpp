#include "cli/tune/trial.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "bench/shared/alternate.h"
#include "check/run/cache_run.h"
#include "check/run/run.h"
#include "cli/bench/grid.h"
#include "cli/bench/measure.h"
#include "cli/terminal/interrupt.h"
#include "cuda/jit/binaries.h"
#include "cuda/jit/nvrtc.h"
#include "dtype.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using Clock = std::chrono::steady_clock;

// The plan's own config is not forced: it need not obey the rules for tuned choices.
tuned::Choice forced_by(const Candidate& candidate) { return candidate.built_in ? tuned::Choice{} : candidate.choice; }

// Largest difference relative to the norm; results of one type that differ only in the order of sums are within half of
// it.
double largest_difference(DType type) { return size_of(type) > 2 ? 1e-4 : 2e-2; }

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, norm = 0;
  for (size_t n = 0; n < a.size(); ++n) {
    const double x = a[n], y = b[n];
    squares += (x - y) * (x - y), norm += x * x;
  }
  return std::sqrt(squares / norm);
}

// A smaller problem that has every edge of the tiles, with just enough tiles to show an error.
check::Case case_of(const BenchPoint& p, const Candidate& candidate) {
  const tuned::Choice& choice = candidate.choice;
  const int64_t tile_q = std::max(choice.tile_q, 64 * choice.warpgroups), tile_k = std::max(choice.tile_k, 64);
  check::Case c;
  c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = dtype_of(p);
  c.heads_k = std::min<int64_t>(2, p.heads_k);
  c.heads_q = c.heads_k * (p.heads_q / p.heads_k);
  c.len_q = std::min(p.len_q, tile_q + 37);
  c.len_k = std::min(p.len_k, (std::max(2, choice.stages) + 1) * tile_k + 45);
  if (p.direction == kBackward) std::swap(c.len_q, c.len_k);  // backward keeps a tile of keys and loops over queries
  c.len_q = std::min(p.len_q, c.len_q), c.len_k = std::min(p.len_k, c.len_k);
  c.dim = p.head_dim, c.dim_v = p.head_dim_v;
  c.causal = p.causal;
  if ((p.options & tuned::kSoftcap) != 0) c.softcap = 30;
  if ((p.options & tuned::kAlibi) != 0) c.alibi_rank = 1;
  if ((p.options & tuned::kDropout) != 0) c.dropout_p = 0.1, c.dropout_seed = 1;
  c.sink = (p.options & tuned::kSinks) != 0;
  // Rows of bias and mask consist of whole vectors, as in the problem.
  if ((p.options & (tuned::kBias | tuned::kMaskTensor)) != 0) c.len_k = std::min(p.len_k, (c.len_k + 15) / 16 * 16);
  if ((p.options & tuned::kBias) != 0) c.bias.emplace(), c.bias_dtype = c.dtype;
  if ((p.options & tuned::kMaskTensor) != 0) c.mask.emplace(), c.mask_eighths = 7;
  for (check::Layout* layout : {&c.q, &c.k, &c.v, &c.o, &c.dout, &c.dq, &c.dk, &c.dv})
    layout->order = check::Order::bshd;
  if (p.direction == kBackward) c.gradients = c.every_gradient();
  c.device = p.device == "cuda" ? Device::cuda : Device::cpu;
  c.threads = 2, c.tile_stats = false, c.exact_workspace = true, c.garbage = true, c.data_seed = 1;
  return c;
}

check::CacheCase cache_case_of(const BenchPoint& p, const Candidate& candidate) {
  constexpr int64_t kMaxKeys = 1024;
  check::CacheCase c;
  c.plain = case_of(p, candidate);
  const int64_t keys = std::min(p.len_k, kMaxKeys);
  c.plain.batch = std::min<int64_t>(2, p.batch), c.plain.len_q = p.len_q, c.plain.len_k = keys;
  c.page_size = p.page_size;
  for (int64_t b = 0; b < c.plain.batch; ++b) {
    const auto length = static_cast<int32_t>(std::max<int64_t>(1, keys - b * (keys / 3)));
    c.rows.push_back(length), c.plain.lengths_k.push_back(length);
  }
  c.room = p.page_size > 0 ? (keys + p.page_size - 1) / p.page_size : keys;
  return c;
}

// The compiler's remarks on a kernel of the disk cache are stored next to it as a separate entry, because the cubin
// does not contain them.
constexpr const char* kNoRemark = "none";
Digest remark_key(const Digest& kernel) { return sha256(join("remark on ", hex(kernel))); }

std::string remark_on(const cuda::KernelUse& use) {
  if (use.spill_stores > 0) return join("spills ", use.spill_stores, " bytes of registers");
  for (const std::string& warning : use.warnings)
    if (warning.find("Performance") != std::string::npos) return join("the compiler says: ", warning);
  return "";
}

CompileResult compile_one(const cuda::Program& program) {
  try {
    cuda::DiskCache& disk = cuda::binaries().disk();
    const Digest key = cuda::disk_key(program, cuda::nvrtc().version);
    if (const auto known = disk.load(remark_key(key)); known && disk.load(key))
      return {"", *known == kNoRemark ? "" : *known};
    const cuda::Compiled compiled = cuda::compile(program);
    const std::string remark = remark_on(cuda::read_use(compiled.log));
    disk.store({key, program.name, compiled.cubin});
    disk.store({remark_key(key), "remark on " + program.name, remark.empty() ? std::string(kNoRemark) : remark});
    return {"", remark};
  } catch (const FlashAttentionError& error) {
    return {error.what(), ""};
  }
}

}  // namespace

void compile(const std::vector<cuda::Program>& programs, Compiled& compiled, const GoOn& go_on) {
  std::set<std::string> seen;
  std::vector<const cuda::Program*> missing;  // in the order of problems: the last ones may have to wait
  for (const cuda::Program& program : programs)
    if (!compiled.contains(program.name) && seen.insert(program.name).second) missing.push_back(&program);
  std::vector<std::optional<CompileResult>> results(missing.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> stops = false;
  const auto work = [&](bool asks) {
    for (size_t n; !stops && (n = next++) < missing.size();) {
      if (asks && !go_on(n, missing.size())) stops = true;
      else results[n] = compile_one(*missing[n]);
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t n = 1; n < std::min<size_t>(missing.size(), std::thread::hardware_concurrency()); ++n)
      helpers.emplace_back(work, false);
    work(true);
  }
  for (size_t n = 0; n < missing.size(); ++n)
    if (results[n]) compiled.emplace(missing[n]->name, std::move(*results[n]));
}

cuda::Program program_of(const Candidate& candidate, const BenchPoint& point, const TuneTarget& target) {
  return cuda::program_of(launch_of(point, target, forced_by(candidate)).kernel);
}

void compile(const std::vector<Candidate*>& candidates, const BenchPoint& point, const TuneTarget& target,
             Compiled& compiled) {
  std::vector<cuda::Program> programs;
  for (const Candidate* candidate : candidates) programs.push_back(program_of(*candidate, point, target));
  compile(programs, compiled, [](size_t, size_t) { return true; });
  for (size_t n = 0; n < programs.size(); ++n) {
    const CompileResult& result = compiled.at(programs[n].name);
    candidates[n]->rejected = result.error.empty() && !candidates[n]->built_in ? result.remark : result.error;
  }
}

// A kernel that hangs cannot be stopped, but the process can.
class Trial::Watchdog {
 public:
  void watch(const std::string& what) {
    const std::lock_guard lock(mutex_);
    what_ = what, since_ = Clock::now();
  }
  void rest() {
    const std::lock_guard lock(mutex_);
    what_.clear();
  }

 private:
  void look() {
    constexpr auto kPatience = std::chrono::seconds(60);  // includes the oracle's time
    const std::lock_guard lock(mutex_);
    if (what_.empty() || Clock::now() - since_ < kPatience) return;
    std::cerr << "cuflash: " << what_ << " hangs on the GPU; nothing more can be measured\n";
    std::cerr.flush();
    ::_exit(1);
  }

  std::mutex mutex_;
  std::string what_;
  Clock::time_point since_;
  std::jthread thread_{[this](const std::stop_token& stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(50))) look();
  }};
};

Trial::Trial(const BenchPoint& point, CudaTimer* timer, int32_t threads)
    : point_(point), timer_(timer), problem_(point, threads) {
  if (timer_) watchdog_ = std::make_unique<Watchdog>();
}
Trial::~Trial() = default;

void Trial::run(const Candidate& candidate) {
  stop_if_asked();
  const tuned::ScopedChoice forced(forced_by(candidate));
  problem_.run();
}

std::vector<float> Trial::results(const Candidate& candidate) {
  const tuned::ScopedChoice forced(forced_by(candidate));
  problem_.fit_workspace();
  return problem_.results();
}

std::string Trial::fault(const Candidate& candidate) {
  if (watchdog_) watchdog_->watch(to_string(candidate.choice));
  std::string text;
  {
    const tuned::ScopedChoice forced(forced_by(candidate));
    text = point_.direction == kDecode ? check::run_cache_case(cache_case_of(point_, candidate))
                                       : check::run_case(case_of(point_, candidate));
  }
  if (text.empty()) {
    const std::vector<float> found = results(candidate);
    if (expected_.empty()) expected_ = found;
    const double d = difference(expected_, found);
    if (!(d <= largest_difference(dtype_of(point_))))
      text = join("results of the whole problem differ by ", d, " of their norm from those of the built-in choice");
  }
  if (watchdog_) watchdog_->rest();
  return text;
}

double Trial::first_time(const Candidate& candidate) {
  constexpr double kSeconds = 0.02;
  if (timer_) return quantile(times({&candidate}, kSeconds)[0], 0.5);
  const tuned::ScopedChoice forced(forced_by(candidate));
  double best = std::numeric_limits<double>::infinity();
  for (double sum = 0; sum < kSeconds; sum += best) {
    const auto start = Clock::now();
    problem_.run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 1e3 * best;
}

std::vector<std::vector<double>> Trial::times(const std::vector<const Candidate*>& candidates, double seconds) {
  if (!timer_) {
    std::vector<bench::Run> runs;
    for (const Candidate* candidate : candidates) runs.push_back([this, candidate] { run(*candidate); });
    auto times = bench::alternate_times(runs, seconds);
    for (auto& list : times)
      for (double& time : list) time *= 1e3;
    return times;
  }
  constexpr int kRounds = 3;
  const double turn = seconds / (kRounds * static_cast<double>(candidates.size()));
  std::vector<std::vector<double>> times(candidates.size());
  for (int n = 0; n < kRounds; ++n)
    for (size_t c = 0; c < candidates.size(); ++c) {
      watchdog_->watch(to_string(candidates[c]->choice));
      const tuned::ScopedChoice forced(forced_by(*candidates[c]));
      problem_.fit_workspace();
      const auto more = timer_->times([this] { stop_if_asked(), problem_.run(); }, turn).milliseconds;
      times[c].insert(times[c].end(), more.begin(), more.end());
      watchdog_->rest();
    }
  return times;
}

}  // namespace cuflash::cli
