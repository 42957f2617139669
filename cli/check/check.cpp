// Compares the library with the float64 oracle on random problems, each of which can be repeated by its number.
#include "cli/check/check.h"

#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>

#include "check/memory/device.h"
#include "cli/arguments/exit.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "support/environment.h"
#include "support/text.h"

namespace cuflash::cli {

check::Limits check_limits(const CheckOptions& options) {
  const bool on_cuda = options.device == Device::cuda;
  if (const std::string why = on_cuda ? check::why_no_cuda() : ""; !why.empty())
    throw FlashAttentionError(CUFLASH_NO_DEVICE, why);
  check::Limits limits = on_cuda ? check::cuda_limits(options.seed, options.head_sizes.value_or(0)) : check::Limits{};
  limits.cache = options.cache, limits.plain = options.plain, limits.options = options.options;
  if (on_cuda && !options.head_sizes) {
    limits.option_sets.clear();
    check::add_kernel_sets(limits, options.seed, options.kernel_sets);
  }
  return limits;
}

int report_checked(const CheckOptions& options, uint64_t first, const check::SweepResult& result, double seconds) {
  for (const check::SweepFailure& failure : result.failures) {
    std::cerr << "problem " << failure.index << ": " << failure.failure << "\n  " << failure.description
              << "\n  reproduce: " << failure.reproduction << "\n";
  }
  if (result.failed > result.failures.size()) {
    std::cerr << "... and " << result.failed - result.failures.size() << " more\n";
  }
  std::cout << result.cases << (options.cache ? " calls over a cache (seed " : " problems (seed ") << options.seed
            << ", from " << first << (options.repeat ? ", the same in every round" : "")
            << (options.device == Device::cuda ? ", cuda" : "") << ") against the float64 oracle in "
            << fixed(seconds, 1) << " s: " << result.failed << " failed\n";
  if (options.device == Device::cuda && !options.only)
    std::cout << "cases: " << result.coverage.text() << "\n"
              << check::describe_loaded_kernels() << "\nseconds of all threads: " << fixed(result.seconds, 1)
              << ", of which in calls on the GPU, with copies and compilation: " << fixed(check::seconds_on_cuda(), 1)
              << "\n";
  return result.failed == 0 ? kExitOk : kExitFailed;
}

// Writes a line for each failure immediately, because a sweep may be interrupted.
static check::FailureLog log_to(const std::string& path) {
  if (path.empty()) return {};
  const auto file = std::make_shared<std::ofstream>(path, std::ios::app);
  if (!*file) throw UsageError(join("--failures: cannot write to ", path));
  return [file](const check::SweepFailure& f) {
    *file << f.reproduction << "  # " << f.failure << "; " << f.description << std::endl;
  };
}

int run_check(const CheckOptions& options) {
  environment();  // an invalid setting is not a failure of every problem
  if (options.forever) return run_soak(options);
  const uint64_t first = options.only.value_or(options.first);
  const uint64_t count = options.only ? 1 : options.count;
  if (count == 0) throw UsageError("--count 0 checks nothing; give at least 1");
  if (uint64_t last = 0; __builtin_add_overflow(first, count - 1, &last)) {
    throw UsageError(join("--first ", first, " with --count ", count, " goes beyond the last problem, 2^64 - 1"));
  }
  const check::Limits limits = check_limits(options);
  if (options.only) std::cout << check::describe_sweep_case(options.seed, first, limits) << "\n";

  const auto start = std::chrono::steady_clock::now();
  Progress progress;
  const AskedToEnd asked_to_end;
  const auto report = [&](uint64_t done, uint64_t failed) {
    progress.show(join(done, " of ", count, " problems checked, ", failed, " failed"));
    return !asked_to_end;
  };
  const check::SweepResult result = check::sweep(
      options.seed, first, count, report, static_cast<unsigned>(options.threads), limits, log_to(options.failures));
  progress.clear();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const int code = report_checked(options, first, result, seconds.count());
  if (result.cases == count) return code;
  std::cerr << "cuflash: interrupted: " << result.cases << " of " << count
            << " problems were checked; continue with --first " << first + result.cases << "\n";
  return code == kExitOk ? asked_to_end.exit_code() : code;
}

}  // namespace cuflash::cli
