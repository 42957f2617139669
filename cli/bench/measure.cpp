#include "cli/bench/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <latch>
#include <thread>

#include "bench/shared/alternate.h"
#include "bench/shared/peak.h"
#include "bench/shared/stream_read.h"
#include "check/cases/random.h"
#include "cli/bench/grid.h"
#include "cli/bench/problem.h"
#include "cli/terminal/interrupt.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/threads.h"
#include "support/physical_memory.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kNaivePatience = 1;  // longest run of naive attention, in seconds

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The highest rate of several tries, since other processes can only slow a try down.
template <class Rate>
double best_rate(double seconds, Rate rate) {
  double best = 0;
  const auto start = Clock::now();
  for (int n = 0; n < 2 || seconds_since(start) < seconds; ++n) best = std::max(best, rate());
  return best;
}

// TFLOP/s of all threads together, each in a loop of multiply-adds on registers.
double multiply_tflops(const bench::RegisterLoop& loop, int threads) {
  constexpr int64_t kSteps = 50000;
  std::vector<float> random(64);
  check::Random numbers(1);
  for (float& value : random) value = static_cast<float>(numbers.normal());
  std::latch begin(threads);
  std::vector<double> times(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (double& time : times)
      workers.emplace_back([&] {
        begin.arrive_and_wait();
        const auto start = Clock::now();
        loop.run(kSteps, random.data());
        time = seconds_since(start);
      });
  }
  const double operations = static_cast<double>(loop.operations * kSteps) * threads;
  return 1e-12 * operations / *std::max_element(times.begin(), times.end());
}

// A buffer that no cache holds.
std::vector<std::byte> large_buffer() {
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const int64_t bytes = cache > 0 ? 4 * int64_t{cache} : int64_t{256} << 20;
  return std::vector<std::byte>(static_cast<size_t>(std::clamp(bytes, int64_t{64} << 20, int64_t{2} << 30)),
                                std::byte{1});
}

std::map<std::string, double> cpu_ceilings(const std::set<std::string>& wanted, int threads, double seconds) {
  std::map<std::string, double> found;
  for (const auto& [name, loop] :
       {std::pair{"f32_tflops", bench::f32_register_loop()}, std::pair{"bf16_tflops", bench::bf16_register_loop()}})
    if (wanted.contains(name) && loop.run)
      found[name] = best_rate(seconds, [&, &used = loop] { return multiply_tflops(used, threads); });
  if (wanted.contains("read_gbs")) {
    const std::vector<std::byte> buffer = large_buffer();
    found["read_gbs"] = best_rate(seconds, [&] {
      return 1e-9 * static_cast<double>(buffer.size()) / stream_read_seconds(buffer.data(), buffer.size(), threads);
    });
  }
  return found;
}

// Times of one contestant, and the figures derived from them.
BenchResult result_of(const BenchPoint& point, const char* contestant, const std::vector<double>& milliseconds,
                      const std::map<std::string, double>& ceilings, double extra_bytes) {
  BenchResult result;
  result.contestant = contestant, result.point = point;
  result.ms_low = quantile(milliseconds, 0.25), result.ms = quantile(milliseconds, 0.5);
  result.ms_high = quantile(milliseconds, 0.75);
  result.tflops = 1e-9 * useful_operations(point) / result.ms;
  if (point.direction == kDecode) result.gbs = 1e-6 * key_value_bytes(point) / result.ms;
  const auto ceiling = ceilings.find(ceiling_of(point));
  if (ceiling != ceilings.end()) result.share = result.gbs.value_or(*result.tflops) / ceiling->second;
  result.extra_bytes = extra_bytes;
  return result;
}

// Naive attention also computes the hidden pairs.
double naive_operations(BenchPoint point) {
  point.causal = false;
  return useful_operations(point);
}

std::vector<double> in_milliseconds(std::vector<double> seconds) {
  for (double& value : seconds) value *= 1e3;
  return seconds;
}

}  // namespace

double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

std::string ceiling_of(const BenchPoint& point) {
  if (point.direction == kDecode) return "read_gbs";
  if (point.device == "cuda") return join(point.dtype, "_tflops");
  if (point.dtype == "f64") return "";
  // A type without instructions for its products is computed in f32.
  return point.dtype == "bf16" && cpu::has_matrix_kernels(DType::bf16) ? "bf16_tflops" : "f32_tflops";
}

Measurer::Measurer(const MeasureOptions& options) : options_(options) {
  if (options.device == "cuda") cuda_ = std::make_unique<CudaTimer>();
  if (options_.threads == 0) options_.threads = cpu::default_num_threads();
}

std::map<std::string, double> Measurer::ceilings(const std::vector<BenchPoint>& points) {
  std::set<std::string> wanted;
  std::set<DType> dtypes;
  for (const BenchPoint& point : points) wanted.insert(ceiling_of(point)), dtypes.insert(dtype_of(point));
  if (cuda_) return cuda_->ceilings({dtypes.begin(), dtypes.end()}, options_.seconds);
  return cpu_ceilings(wanted, options_.threads, std::min(options_.seconds, 0.3));
}

// Reserves as much again for workspaces.
bool Measurer::fits(const BenchPoint& point) const {
  return 2 * tensor_bytes(point) < (cuda_ ? free_device_memory() : static_cast<double>(physical_memory()));
}

// Naive attention cannot be stopped, so its time is predicted: from its speed on a small problem, then on earlier ones.
bool Measurer::naive_in_time(const BenchPoint& point) {
  const auto [speed, is_new] = naive_speed_.try_emplace({point.dtype, point.direction}, 0);
  if (is_new) {
    BenchPoint small = point;
    small.batch = small.heads_q = small.heads_k = 1;
    small.len_k = std::min<int64_t>(point.len_k, 128), small.len_q = std::min<int64_t>(point.len_q, 128);
    const BenchProblem problem(small, options_.threads);
    problem.run_naive();
    const auto start = Clock::now();
    problem.run_naive();
    speed->second = seconds_since(start) / naive_operations(small);
  }
  return speed->second * naive_operations(point) < kNaivePatience;
}

std::vector<BenchResult> Measurer::measure(const BenchPoint& point, const std::map<std::string, double>& ceilings,
                                           std::vector<std::string>& notes) {
  if (!fits(point)) {
    notes.push_back(join(point_text(point), ": left out, its tensors of ", bytes_text(tensor_bytes(point)),
                         " and a workspace may not fit"));
    return {};
  }
  const BenchProblem problem(point, options_.threads);
  const auto run = [&] { stop_if_asked(), problem.run(); };
  if (cuda_) {
    const CudaTimer::Times times = cuda_->times(run, options_.seconds);
    BenchResult result = result_of(point, kCuflash, times.milliseconds, ceilings, problem.workspace_bytes());
    if (!times.clocks.empty()) result.clock_mhz = quantile(times.clocks, 0.5);
    return {result};
  }
  std::vector<const char*> names;
  std::vector<bench::Run> runs;
  if (options_.contestants.contains(kCuflash)) names.push_back(kCuflash), runs.push_back(run);
  if (options_.contestants.contains(kNaive) && problem.has_naive()) {
    const bool small = problem.naive_bytes() < static_cast<double>(physical_memory()) / 2;
    if (small && naive_in_time(point))
      names.push_back(kNaive), runs.push_back([&] { stop_if_asked(), problem.run_naive(); });
    else notes.push_back(join(point_text(point), ": naive is left out, it would take too long or too much memory"));
  }
  const auto times = bench::alternate_times(runs, options_.seconds);
  std::vector<BenchResult> results;
  for (size_t n = 0; n < runs.size(); ++n) {
    const bool is_naive = names[n] == kNaive;
    const double bytes = is_naive ? problem.naive_bytes() : problem.workspace_bytes();
    results.push_back(result_of(point, names[n], in_milliseconds(times[n]), ceilings, bytes));
    if (is_naive) naive_speed_[{point.dtype, point.direction}] = 1e-3 * results.back().ms / naive_operations(point);
  }
  return results;
}

}  // namespace cuflash::cli
