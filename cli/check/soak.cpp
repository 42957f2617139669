// `cuflash check --forever`. Problems are checked in rounds. Between rounds no problem holds memory, so growth from one round
// to the next is a leak, or a kernel that was not loaded before; --repeat rules out new kernels.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>

#include "check/memory/memory_use.h"
#include "cli/arguments/exit.h"
#include "cli/check/check.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLastProblem = std::numeric_limits<uint64_t>::max();

class Soak {
 public:
  Soak(const CheckOptions& options, uint64_t round)
      : options_(options),
        round_(round),
        limits_(check_limits(options)),
        allowed_growth_(allowed_growth(options)),
        start_(Clock::now()),
        end_(end_of(options, start_)) {}

  int run() {
    check::return_freed_memory();
    std::cout << "checking without end: seed " << options_.seed << ", from problem " << options_.first
              << "; SIGINT (ctrl-C) or SIGTERM ends it" << std::endl;
    while (goes_on(total_.failed) && leak_.empty() && next() < kLastProblem) {
      run_round();
      if (total_.failed == 0) look_at_memory();  // a crashed kernel leaves the device unusable
    }
    progress_.clear();
    const int code = report_checked(options_, options_.first, total_, seconds());
    report_memory();
    std::cout << "resume with: cuflash check --forever " << (options_.repeat ? "--repeat " : "") << "--seed "
              << options_.seed << " --first " << next() << check::sweep_flags(limits_) << std::endl;
    if (!leak_.empty()) std::cerr << "cuflash: " << leak_ << "\n";
    return leak_.empty() ? code : kExitFailed;
  }

 private:
  static std::optional<Clock::time_point> end_of(const CheckOptions& options, Clock::time_point start) {
    if (!options.minutes) return std::nullopt;
    constexpr double kMax = 1e7;  // 19 years
    if (!(*options.minutes > 0 && *options.minutes <= kMax))
      throw UsageError(join("--minutes is ", *options.minutes, ", must be above 0 and at most ", kMax));
    const std::chrono::duration<double, std::ratio<60>> minutes(*options.minutes);
    return start + std::chrono::duration_cast<Clock::duration>(minutes);
  }

  uint64_t next() const { return options_.first + (options_.repeat ? 0 : total_.cases); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool goes_on(uint64_t failed) const { return failed == 0 && !asked_to_end_ && (!end_ || Clock::now() < *end_); }
  // Compiled kernels stay loaded, so on CUDA memory grows until all of them are.
  static int64_t allowed_growth(const CheckOptions& options) {
    const bool loads_kernels = options.device == Device::cuda && !options.repeat;
    const int64_t mebibytes = options.max_growth.value_or(loads_kernels ? 1024 : 64);
    return mebibytes << 20;
  }

  void run_round() {
    const uint64_t done_before = total_.cases;
    const auto report = [&](uint64_t done, uint64_t failed) {
      progress_.show(join(done_before + done, " problems checked in ", fixed(seconds(), 0), " s, ", failed, " failed"));
      return goes_on(failed);
    };
    const check::SweepResult round = check::sweep(options_.seed, next(), std::min(round_, kLastProblem - next()),
                                                  report, static_cast<unsigned>(options_.threads), limits_);
    total_.cases += round.cases, total_.failed += round.failed, total_.failures = round.failures;
    total_.coverage.add(round.coverage), total_.seconds += round.seconds;
  }

  // The first round fills the allocator's caches, so later rounds are compared with it.
  void look_at_memory() {
    now_ = check::memory_use(options_.device);
    if (before_) leak_ = check::growth_beyond(allowed_growth_, *before_, now_);
    else before_ = now_, before_cases_ = total_.cases;
  }

  void report_memory() const {
    if (!before_) return;
    const auto line = [&](const char* name, int64_t before, int64_t now) {
      std::cout << name << bytes_text(static_cast<double>(before)) << " after " << before_cases_ << " problems, "
                << (total_.cases > before_cases_ ? join(bytes_text(static_cast<double>(now)), " after ", total_.cases)
                                                 : "too few to see it grow")
                << "\n";
    };
    line("resident memory: ", before_->host, now_.host);
    if (options_.device == Device::cuda) line("device memory, all processes: ", before_->device, now_.device);
  }

  const CheckOptions& options_;
  const uint64_t round_;
  const check::Limits limits_;
  const int64_t allowed_growth_;
  const Clock::time_point start_;
  const std::optional<Clock::time_point> end_;
  const AskedToEnd asked_to_end_;
  Progress progress_{std::chrono::seconds(60)};
  check::SweepResult total_;
  std::optional<check::MemoryUse> before_;
  uint64_t before_cases_ = 0;
  check::MemoryUse now_;
  std::string leak_;
};

}  // namespace

int run_soak(const CheckOptions& options, uint64_t round) { return Soak(options, round).run(); }

}  // namespace cuflash::cli
