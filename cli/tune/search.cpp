#include "cli/tune/search.h"

#include <algorithm>
#include <thread>

#include "cli/bench/grid.h"
#include "cli/bench/measure.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

constexpr double kMinGain = 0.02;       // share of the time that a choice must save to replace the built-in one
constexpr double kCompiling = 1.0 / 3;  // share of all time, before the first problem
constexpr double kSearching = 0.6;      // share of a problem's time; the rest goes to the finalists
constexpr double kMaxDeciding = 10;     // seconds
constexpr size_t kFinalists = 4;        // in addition to the built-in choice

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<double> ratios_to(const std::vector<double>& built_in, std::vector<double> times) {
  const double median = quantile(built_in, 0.5);
  for (size_t n = 0; n < times.size(); ++n) times[n] /= times.size() == built_in.size() ? built_in[n] : median;
  return times;
}

size_t fastest_of(const std::vector<std::vector<double>>& times) {
  size_t best = 0;
  double least = 1 - kMinGain;
  for (size_t n = 1; n < times.size(); ++n) {
    const std::vector<double> ratios = ratios_to(times[0], times[n]);
    const double ratio = quantile(ratios, 0.5);
    if (ratio < least && quantile(ratios, 0.75) < 1) best = n, least = ratio;
  }
  return best;
}

TuneSearch::TuneSearch(const TuneTarget& target, double seconds, int32_t threads, const AskedToEnd& asked_to_end)
    : target_(target),
      seconds_(seconds),
      threads_(threads),
      asked_to_end_(asked_to_end),
      timer_(target.cpu ? nullptr : std::make_unique<CudaTimer>()) {}

bool TuneSearch::out_of_time() const { return seconds_since(start_) >= seconds_; }

void TuneSearch::compile_ahead(const std::vector<BenchPoint>& points, const Report& report) {
  if (target_.cpu) return;
  std::vector<cuda::Program> programs;
  for (const BenchPoint& point : points) {
    try {
      for (const Candidate& candidate : candidates_of(point, target_))
        if (candidate.rejected.empty()) programs.push_back(program_of(candidate, point, target_));
    } catch (const FlashAttentionError&) {
      // Reported when its problem is searched.
    }
  }
  compile(programs, compiled_, [&](size_t begun, size_t all) {
    report(begun, all);
    return !asked_to_end_ && seconds_since(start_) < kCompiling * seconds_;
  });
}

TuneOutcome TuneSearch::search(const BenchPoint& point, std::vector<Candidate> candidates, double share,
                               const Report& report, std::vector<std::string>& notes) {
  const auto begin = Clock::now();
  const double budget = (seconds_ - seconds_since(start_)) * share;
  TuneOutcome outcome;
  outcome.point = point, outcome.built_in = outcome.best = candidates.front().choice;
  trial_ = std::make_unique<Trial>(point, timer_.get(), threads_);
  std::vector<Candidate*> waiting;
  for (Candidate& candidate : candidates) {
    if (candidate.rejected.empty()) waiting.push_back(&candidate);
    else outcome.times.push_back({candidate.choice, 0, candidate.rejected}), ++outcome.rejected;
  }
  const size_t at_a_time = std::max(1u, std::thread::hardware_concurrency());
  Timed timed;
  size_t done = 0;
  for (; done < waiting.size() && (done == 0 || seconds_since(begin) < kSearching * budget); ++done) {
    report(done, waiting.size());
    stop_if_asked();
    if (!target_.cpu && done % at_a_time == 0) {
      const auto first = waiting.begin() + static_cast<std::ptrdiff_t>(done);
      const size_t count = std::min(at_a_time, waiting.size() - done);
      compile({first, first + static_cast<std::ptrdiff_t>(count)}, point, target_, compiled_);
    }
    try_one(*waiting[done], outcome, timed, notes);
  }
  outcome.left = waiting.size() - done;
  for (size_t n = done; n < waiting.size(); ++n) outcome.times.push_back({waiting[n]->choice, 0, "left"});
  decide(outcome, timed, std::clamp(budget - seconds_since(begin), 0.05, kMaxDeciding));
  trial_.reset();  // frees its memory
  return outcome;
}

void TuneSearch::try_one(const Candidate& candidate, TuneOutcome& outcome, Timed& timed,
                         std::vector<std::string>& notes) {
  const auto named = [&](const char* words, const std::string& fault) {
    return join(point_text(outcome.point), ": ", words, to_string(candidate.choice), " ", fault);
  };
  if (!candidate.rejected.empty()) {  // by the compiler
    if (candidate.built_in)
      throw FlashAttentionError(CUFLASH_INTERNAL,
                                named("the built-in choice ", "has no kernel: " + candidate.rejected));
    outcome.times.push_back({candidate.choice, 0, candidate.rejected}), ++outcome.rejected;
    return;
  }
  if (const std::string fault = trial_->fault(candidate); !fault.empty()) {
    if (candidate.built_in)
      throw FlashAttentionError(CUFLASH_INTERNAL, named("the built-in choice ", "gives wrong results: " + fault));
    notes.push_back(named("", "is left out because its results are wrong: " + fault));
    outcome.times.push_back({candidate.choice, 0, "wrong"}), ++outcome.wrong;
    return;
  }
  ++outcome.tried;
  timed.emplace_back(trial_->first_time(candidate), &candidate);
}

// Times the fastest candidates of the first look and the built-in choice, which comes first, in alternation.
void TuneSearch::decide(TuneOutcome& outcome, Timed& timed, double seconds) {
  const auto kept = static_cast<std::ptrdiff_t>(std::min(kFinalists, timed.size() - 1));
  std::partial_sort(timed.begin() + 1, timed.begin() + 1 + kept, timed.end());
  std::vector<const Candidate*> finalists;
  for (auto one = timed.begin(); one <= timed.begin() + kept; ++one) finalists.push_back(one->second);
  const auto times = trial_->times(finalists, seconds);
  for (size_t n = 0; n < finalists.size(); ++n)
    outcome.times.push_back({finalists[n]->choice, quantile(times[n], 0.5), n == 0 ? "built in" : "final"});
  for (auto one = timed.begin() + 1 + kept; one != timed.end(); ++one)
    outcome.times.push_back({one->second->choice, one->first, "first look"});
  const size_t best = fastest_of(times);
  outcome.built_in_ms = quantile(times[0], 0.5);
  outcome.best_ms = outcome.built_in_ms * quantile(ratios_to(times[0], times[best]), 0.5);
  outcome.best = finalists[best]->choice, outcome.won = best != 0;
}

}  // namespace cuflash::cli
