// The library against the float64 oracle on random problems, each of which can be repeated by its number.
#include <chrono>
#include <iostream>

#include "check/device.h"
#include "check/sweep.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/progress.h"
#include "cli/text.h"

namespace cuflash::cli {

int run_check(const CheckOptions& options) {
  const uint64_t first = options.only.value_or(options.first);
  const uint64_t count = options.only ? 1 : options.count;
  if (count == 0) throw UsageError("--count 0 checks nothing; give at least 1");
  if (uint64_t last = 0; __builtin_add_overflow(first, count - 1, &last)) {
    throw UsageError(join("--first ", first, " with --count ", count, " goes beyond the last problem, 2^64 - 1"));
  }
  const bool on_cuda = options.device == Device::cuda;
  if (const std::string why = on_cuda ? check::why_no_cuda() : ""; !why.empty())
    throw FlashAttentionError(CUFLASH_NO_DEVICE, why);
  check::Limits limits = on_cuda ? check::cuda_limits(options.seed, options.head_sizes) : check::Limits{};
  limits.cache = options.cache;
  if (options.only) std::cout << check::describe_sweep_case(options.seed, first, limits) << "\n";

  const auto start = std::chrono::steady_clock::now();
  Progress progress;
  const auto report = [&](uint64_t done, uint64_t failed) {
    progress.show(join(done, " of ", count, " problems checked, ", failed, " failed"));
  };
  const check::SweepResult result =
      check::sweep(options.seed, first, count, report, static_cast<unsigned>(options.threads), limits);
  progress.clear();

  for (const check::SweepFailure& failure : result.failures) {
    std::cerr << "problem " << failure.index << ": " << failure.failure << "\n  " << failure.description
              << "\n  reproduce: " << failure.reproduction << "\n";
  }
  if (result.failed > result.failures.size()) {
    std::cerr << "... and " << result.failed - result.failures.size() << " more\n";
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << result.cases << (options.cache ? " calls over a cache (seed " : " problems (seed ") << options.seed
            << ", from " << first << (on_cuda ? ", cuda" : "") << ") against the float64 oracle in "
            << fixed(seconds.count(), 1) << " s: " << result.failed << " failed\n";
  return result.failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace cuflash::cli
