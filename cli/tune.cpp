// Searches tiles, stages and splits for problems on this machine, and stores what beats the built-in tables.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <new>
#include <thread>

#include "cli/bench_grid.h"
#include "cli/bench_measure.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/text.h"
#include "cli/tune_trial.h"
#include "cpu/tuned_tile.h"
#include "cuda/device.h"
#include "cuda/disk_cache.h"
#include "cuda/environment.h"
#include "cuda/nvrtc.h"
#include "cuda/plan_cache.h"
#include "tuned/table.h"

namespace cuflash::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastGain = 0.02;   // of the time; below, the built-in choice stays
constexpr double kSearching = 0.6;    // of the time of a problem; the rest is for those that were fastest
constexpr double kMostDeciding = 10;  // seconds
constexpr size_t kFinalists = 4;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TuneTarget target_of(const TuneOptions& options, const std::string& device) {
  if (!options.arch.empty()) {
    const cuda::Arch arch = cuda::arch_named(options.arch);
    return {false, arch, cuda::usual_sms(arch)};
  }
  if (device == "cpu") return {};
  return {false, cuda::device(0).arch, cuda::device(0).num_sms};
}

std::string members_text(const tuned::Choice& choice) {
  const std::string text = to_string(choice);
  return text.substr(std::min(text.find(' ') + 1, text.size()));
}

// What the search would do.

std::string verdict(const Candidate& candidate) {
  if (!candidate.rejected.empty()) return "no: " + candidate.rejected;
  return candidate.built_in ? "built in" : "tried";
}

void show_candidates(const BenchPoint& point, const TuneTarget& target, bool compile_too, Compiled& compiled) {
  std::vector<Candidate> candidates = candidates_of(point, target);
  std::cout << point_text(point) << (target.cpu ? "" : join(" on ", target_of(target.arch))) << "\n";
  if (candidates.empty()) {
    std::cout << "nothing to choose: how it is cut into parts follows from the sequence alone\n";
    return;
  }
  if (compile_too && !target.cpu) {
    std::vector<Candidate*> tried;
    for (Candidate& candidate : candidates)
      if (candidate.rejected.empty()) tried.push_back(&candidate);
    compile(tried, point, target, compiled);
  }
  Table table;
  table.head = {"config", target.cpu ? "scratch" : "shared memory", "registers", ""};
  if (target.cpu) table.head = {"config", "scratch", ""};
  for (const Candidate& candidate : candidates) {
    const cuda::Limits& l = candidate.limits;
    if (target.cpu) table.rows.push_back({members_text(candidate.choice), join(l.shared_bytes), verdict(candidate)});
    else
      table.rows.push_back(
          {members_text(candidate.choice), l.shared_most == 0 ? "" : join(l.shared_bytes, " of ", l.shared_most),
           l.shared_most == 0 ? "" : join("about ", l.registers, " of ", l.registers_most), verdict(candidate)});
  }
  std::cout << table.text();
}

int show_all(const TuneOptions& options, const std::vector<BenchPoint>& points, const TuneTarget& target) {
  Compiled compiled;
  for (const BenchPoint& point : points) show_candidates(point, target, options.compile, compiled);
  return kExitOk;
}

// The search.

struct Outcome {
  BenchPoint point;
  size_t tried = 0, rejected = 0, wrong = 0, left = 0;  // candidates
  tuned::Choice built_in, best;
  double built_in_ms = 0, best_ms = 0;
  bool won = false;
};

class Search {
 public:
  Search(const TuneOptions& options, const TuneTarget& target)
      : options_(options), target_(target), timer_(target.cpu ? nullptr : std::make_unique<CudaTimer>()) {}

  bool out_of_time() const { return seconds_since(start_) >= options_.seconds; }

  // share: of the points that are left. Throws where the built-in choice itself fails.
  Outcome search(const BenchPoint& point, std::vector<Candidate> candidates, double share,
                 std::vector<std::string>& notes) {
    const auto begin = Clock::now();
    const double budget = std::max(0.1, (options_.seconds - seconds_since(start_)) * share);
    Outcome outcome;
    outcome.point = point, outcome.built_in = outcome.best = candidates.front().choice;
    trial_ = std::make_unique<Trial>(point, timer_.get(), options_.grid.threads);
    std::vector<std::pair<double, const Candidate*>> timed;
    const size_t batch = target_.cpu ? 1 : std::max(1u, std::thread::hardware_concurrency());
    std::vector<Candidate*> waiting;
    for (Candidate& candidate : candidates) {
      if (candidate.rejected.empty()) waiting.push_back(&candidate);
      else ++outcome.rejected;
    }
    size_t done = 0;
    while (done < waiting.size() && (done == 0 || seconds_since(begin) < kSearching * budget)) {
      const size_t count = std::min(batch, waiting.size() - done);
      const std::vector<Candidate*> now(waiting.begin() + static_cast<std::ptrdiff_t>(done),
                                        waiting.begin() + static_cast<std::ptrdiff_t>(done + count));
      if (!target_.cpu) compile(now, point, target_, compiled_);
      for (const Candidate* candidate : now) try_one(*candidate, outcome, timed, notes);
      done += count;
    }
    outcome.left = waiting.size() - done;
    decide(outcome, timed, std::clamp(budget - seconds_since(begin), 0.05, kMostDeciding));
    trial_.reset();
    return outcome;
  }

 private:
  void try_one(const Candidate& candidate, Outcome& outcome, std::vector<std::pair<double, const Candidate*>>& timed,
               std::vector<std::string>& notes) {
    if (!candidate.rejected.empty()) {
      if (candidate.built_in) throw FlashAttentionError(CUFLASH_INTERNAL, candidate.rejected);
      ++outcome.rejected;
      return;
    }
    if (const std::string fault = trial_->fault(candidate); !fault.empty()) {
      if (candidate.built_in)
        throw FlashAttentionError(CUFLASH_INTERNAL, join(point_text(outcome.point), ": the built-in choice ",
                                                         to_string(candidate.choice), " is wrong: ", fault));
      notes.push_back(join(point_text(outcome.point), ": ", to_string(candidate.choice), " is left out, ", fault));
      ++outcome.wrong;
      return;
    }
    ++outcome.tried;
    timed.emplace_back(trial_->first_time(candidate), &candidate);
  }

  // The fastest of a first look and the built-in one, which stands first, measured in turns.
  void decide(Outcome& outcome, std::vector<std::pair<double, const Candidate*>>& timed, double seconds) {
    const size_t kept = std::min(kFinalists, timed.size() - 1);
    std::partial_sort(timed.begin() + 1, timed.begin() + 1 + static_cast<std::ptrdiff_t>(kept), timed.end());
    std::vector<const Candidate*> finalists;
    for (size_t n = 0; n <= kept; ++n) finalists.push_back(timed[n].second);
    const auto times = trial_->times(finalists, seconds);
    outcome.built_in_ms = outcome.best_ms = quantile(times[0], 0.5);
    for (size_t n = 1; n < finalists.size(); ++n) {
      const double ms = quantile(times[n], 0.5);
      // Three quarters of its times are better than half of the built-in one's: beyond the noise.
      const bool clear = quantile(times[n], 0.75) < outcome.built_in_ms && ms < (1 - kLeastGain) * outcome.built_in_ms;
      if (!clear || ms >= outcome.best_ms) continue;
      outcome.best_ms = ms, outcome.best = finalists[n]->choice, outcome.won = true;
    }
  }

  const TuneOptions& options_;
  TuneTarget target_;
  std::unique_ptr<CudaTimer> timer_;
  std::unique_ptr<Trial> trial_;
  Compiled compiled_;
  Clock::time_point start_ = Clock::now();
};

int gain_of(const Outcome& outcome) { return static_cast<int>(100 * (1 - outcome.best_ms / outcome.built_in_ms)); }

void show(const std::vector<Outcome>& outcomes) {
  Table table;
  table.head = {"problem", "built in", "ms", "fastest", "ms", "gain", "tried", "rejected", "wrong", "left"};
  for (const Outcome& o : outcomes)
    table.rows.push_back({point_text(o.point), members_text(o.built_in), fixed(o.built_in_ms, 4),
                          o.won ? members_text(o.best) : "the same", fixed(o.best_ms, 4), join(gain_of(o), "%"),
                          join(o.tried), join(o.rejected), join(o.wrong), join(o.left)});
  std::cout << table.text();
}

std::string device_of(const TuneTarget& target) {
  return target.cpu ? cpu::tuned_name() : cuda::tuned_name(cuda::device(0));
}

// After each problem: what was found is not lost with those that follow.
void store(const Outcome& o, const TuneTarget& target) {
  const tuned::Measured measured = o.won ? tuned::Measured{o.best, gain_of(o)} : tuned::Measured{};
  const std::string problem =
      tuned::write_choices(cuda::environment().cache_dir, device_of(target), {{kind_of(o.point, target), measured}});
  if (!problem.empty()) throw UsageError(join("what was found cannot be stored: ", problem));
}

void show_stored(const std::vector<Outcome>& outcomes, const TuneTarget& target) {
  const auto won = std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.won; });
  std::cout << won << " of " << outcomes.size() << " problems have a faster choice now, in "
            << cuda::environment().cache_dir << "/" << cuda::kTunedFile << " for " << in_quotes(device_of(target))
            << "; the others keep what is built in\n";
  if (cuda::environment().tuned == "off") std::cout << "CUFLASH_TUNED=off: plans do not read it\n";
}

// Before anything is measured: it would be lost.
void require_usable(const TuneOptions& options, const TuneTarget& target) {
  if (!(options.seconds > 0 && options.seconds <= 86400))
    throw UsageError(join("--seconds is ", options.seconds, ", must be larger than 0 and at most 86400"));
  if (options.dry_run) return;
  const cuda::DiskCache disk(cuda::environment().cache_dir);
  if (!disk.usable()) throw UsageError(join("what is found could not be stored: ", disk.state()));
  if (target.cpu) return;
  if (cuda::environment().jit == "off") throw UsageError("CUFLASH_JIT=off forbids to compile what shall be tried");
  cuda::nvrtc();  // throws, with the way out
}

}  // namespace

int run_tune(const TuneOptions& options) {
  const std::string device = options.arch.empty() ? bench_device(options.grid.device) : "cuda";
  if (!options.arch.empty() && options.grid.device == Device::cpu)
    throw UsageError("--arch is an architecture of CUDA devices; leave it out with --device cpu");
  const TuneTarget target = target_of(options, device);
  require_usable(options, target);
  const std::vector<BenchPoint> points = bench_grid(options.grid, device);
  if (options.dry_run) return show_all(options, points, target);

  Search search(options, target);
  std::vector<Outcome> outcomes;
  std::vector<std::string> notes;
  Progress progress;
  size_t n = 0;
  for (; n < points.size() && !search.out_of_time(); ++n) {
    const std::string what = point_text(points[n]);
    progress.announce(join(bar(n, points.size()), "  ", what));
    progress.show(join(bar(n, points.size()), "  ", what));
    try {
      std::vector<Candidate> candidates = candidates_of(points[n], target);
      if (candidates.empty()) {
        notes.push_back(what + ": nothing to choose");
        continue;
      }
      outcomes.push_back(
          search.search(points[n], std::move(candidates), 1.0 / static_cast<double>(points.size() - n), notes));
      store(outcomes.back(), target);
    } catch (const std::bad_alloc&) {
      notes.push_back(what + ": left out, there is not enough memory");
    } catch (const FlashAttentionError& error) {
      if (error.status() != CUFLASH_OUT_OF_MEMORY && error.status() != CUFLASH_UNSUPPORTED) throw;
      notes.push_back(join(what, ": left out, ", error.what()));
    }
  }
  progress.clear();
  for (const std::string& note : notes) std::cerr << note << "\n";
  if (n < points.size())
    std::cerr << points.size() - n << " problems were left out: --seconds " << options.seconds << " are over\n";
  if (outcomes.empty()) throw UsageError("nothing was measured, see above");
  show(outcomes);
  show_stored(outcomes, target);
  return kExitOk;
}

}  // namespace cuflash::cli
