// Searches tiles, stages and splits for problems on this machine, and stores the choices that beat the built-in ones.
#include <algorithm>
#include <iostream>
#include <new>
#include <numeric>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/bench/grid.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/table.h"
#include "cli/tune/option_sets.h"
#include "cli/tune/results.h"
#include "cli/tune/search.h"
#include "cpu/plan/tuned_tile.h"
#include "cuda/driver/device.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/plan/plan.h"
#include "files/tensors/output_files.h"
#include "machine/cache_problem.h"
#include "support/environment.h"
#include "support/text.h"
#include "tuned/table.h"

namespace cuflash::cli {

namespace {

TuneTarget target_of(const TuneOptions& options, const std::string& device) {
  if (!options.arch.empty()) {
    const cuda::Arch arch = cuda::arch_named(options.arch);
    return {false, arch, arch.usual_sms};
  }
  if (device == "cpu") return {};
  return {false, cuda::device(0).arch, cuda::device(0).num_sms};
}

std::string members_text(const tuned::Choice& choice) {
  const std::string text = to_string(choice);
  return text.substr(std::min(text.find(' ') + 1, text.size()));
}

// The plan of the search (--dry-run).

std::string verdict(const Candidate& candidate) {
  if (!candidate.rejected.empty()) return "no: " + candidate.rejected;
  return candidate.built_in ? "built in" : "tried";
}

std::vector<std::string> row_of(const Candidate& candidate, bool cpu) {
  const cuda::Limits& l = candidate.limits;
  const std::string config = members_text(candidate.choice), what = verdict(candidate);
  if (cpu) return {config, join(l.shared_bytes), what};
  if (l.max_shared_bytes == 0) return {config, "", "", what};  // another number of splits of the previous tile
  return {config, join(l.shared_bytes, " of ", l.max_shared_bytes),
          join("about ", l.registers, " of ", l.max_registers), what};
}

void show_candidates(const BenchPoint& point, const TuneTarget& target, bool compile_too, Compiled& compiled) {
  std::vector<Candidate> candidates = candidates_of(point, target);
  std::cout << point_text(point) << (target.cpu ? "" : join(" on ", target_of(target.arch))) << "\n";
  if (candidates.empty()) {
    std::cout << "nothing to choose: the sequence alone decides how the work is split\n";
    return;
  }
  if (compile_too && !target.cpu) {
    std::vector<Candidate*> tried;
    for (Candidate& candidate : candidates)
      if (candidate.rejected.empty()) tried.push_back(&candidate);
    compile(tried, point, target, compiled);
  }
  Table table;
  if (target.cpu) table.head = {"config", "scratch", ""};
  else table.head = {"config", "shared memory", "registers", ""};
  for (const Candidate& candidate : candidates) table.rows.push_back(row_of(candidate, target.cpu));
  std::cout << table.text();
}

int show_all(const TuneOptions& options, const std::vector<BenchPoint>& points, const TuneTarget& target) {
  Compiled compiled;
  for (const BenchPoint& point : points) show_candidates(point, target, options.compile, compiled);
  return kExitOk;
}

// The results of the search.

int gain_of(const TuneOutcome& outcome) { return static_cast<int>(100 * (1 - outcome.best_ms / outcome.built_in_ms)); }

void show(const std::vector<TuneOutcome>& outcomes) {
  Table table;
  table.head = {"problem", "built in", "ms", "fastest", "ms", "gain", "tried", "rejected", "wrong", "left"};
  for (const TuneOutcome& o : outcomes)
    table.rows.push_back({point_text(o.point), members_text(o.built_in), fixed(o.built_in_ms, 4),
                          o.won ? members_text(o.best) : "the same", fixed(o.best_ms, 4), join(gain_of(o), "%"),
                          join(o.tried), join(o.rejected), join(o.wrong), join(o.left)});
  std::cout << table.text();
}

std::string device_of(const TuneTarget& target) {
  return target.cpu ? cpu::tuned_name() : cuda::tuned_name(cuda::device(0));
}

// Stores after each problem, so that a later failure does not lose the choices found so far.
void store(const TuneOutcome& o, const TuneTarget& target) {
  const tuned::Measured measured = o.won ? tuned::Measured{o.best, gain_of(o)} : tuned::Measured{};
  const std::string problem =
      tuned::write_choices(environment().cache_dir, device_of(target), {{kind_of(o.point, target), measured}});
  if (!problem.empty()) throw UsageError(join("the choices cannot be stored: ", problem));
}

void show_stored(const std::vector<TuneOutcome>& outcomes, const TuneTarget& target) {
  const auto won = std::count_if(outcomes.begin(), outcomes.end(), [](const TuneOutcome& o) { return o.won; });
  std::cout << won << " of " << outcomes.size() << " problems now have a faster choice, in " << environment().cache_dir
            << "/" << tuned::kTunedFile << " for " << in_quotes(device_of(target))
            << "; the others keep the built-in one\n";
  if (environment().tuned == "off") std::cout << "CUFLASH_TUNED=off: plans ignore this file\n";
}

// Fails before measuring if the results could not be stored.
void require_usable(const TuneOptions& options, const TuneTarget& target) {
  if (!(options.seconds > 0 && options.seconds <= 86400))
    throw UsageError(join("--seconds is ", options.seconds, ", must be larger than 0 and at most 86400"));
  if (options.dry_run) return;
  const cuda::DiskCache disk(environment().cache_dir);
  if (!disk.usable()) throw UsageError(join("the choices could not be stored: ", machine::cache_problem(disk)));
  if (target.cpu) return;
  if (environment().jit == "off") throw UsageError("CUFLASH_JIT=off forbids compiling the candidates");
  cuda::nvrtc();  // throws if there is no compiler
}

// A problem's share of the time: one part per candidate, and a few for the candidates that are timed at the end.
double weight_of(const BenchPoint& point, const TuneTarget& target) {
  constexpr double kFinal = 4;
  try {
    const std::vector<Candidate> all = candidates_of(point, target);
    const auto tried = std::count_if(all.begin(), all.end(), [](const Candidate& c) { return c.rejected.empty(); });
    return kFinal + static_cast<double>(tried);
  } catch (const FlashAttentionError&) {
    return kFinal;  // reported when it is searched
  }
}

// The problems searched before a signal arrived. Notes on the others are printed after the progress line.
std::vector<TuneOutcome> search_all(const TuneOptions& options, const TuneTarget& target,
                                    const std::vector<BenchPoint>& points, const AskedToEnd& asked_to_end) {
  TuneSearch search(target, options.seconds, options.grid.threads, asked_to_end);
  std::vector<TuneOutcome> outcomes;
  std::vector<std::string> notes;
  Progress progress;
  search.compile_ahead(points, [&](size_t done, size_t all) {
    progress.show(join(bar(done, all), "  compiling kernel ", done + 1, " of ", all));
  });
  std::vector<double> weights;
  for (const BenchPoint& point : points) weights.push_back(weight_of(point, target));
  size_t n = 0;
  for (; n < points.size() && !search.out_of_time() && !asked_to_end; ++n) {
    const std::string what = point_text(points[n]);
    const auto report = [&](size_t done, size_t all) {
      progress.show(join(bar(n, points.size()), "  ", what, ", candidate ", done + 1, " of ", all));
    };
    progress.announce(join(bar(n, points.size()), "  ", what));
    try {
      std::vector<Candidate> candidates = candidates_of(points[n], target);
      if (candidates.empty()) {
        notes.push_back(what + ": nothing to choose");
        continue;
      }
      const double share =
          weights[n] / std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(n), weights.end(), 0.0);
      outcomes.push_back(search.search(points[n], std::move(candidates), share, report, notes));
      store(outcomes.back(), target);
    } catch (const Interrupted&) {
      break;
    } catch (const std::bad_alloc&) {
      notes.push_back(what + ": left out, not enough memory");
    } catch (const FlashAttentionError& error) {
      if (error.status() != CUFLASH_OUT_OF_MEMORY && error.status() != CUFLASH_UNSUPPORTED) throw;
      notes.push_back(join(what, ": left out, ", error.what()));
    }
  }
  progress.clear();
  for (const std::string& note : notes) std::cerr << note << "\n";
  if (asked_to_end)
    std::cerr << "cuflash: interrupted: " << n << " of " << points.size() << " problems were searched and stored\n";
  else if (n < points.size())
    std::cerr << points.size() - n << " problems were left out: --seconds " << options.seconds << " is used up\n";
  return outcomes;
}

}  // namespace

static std::vector<BenchPoint> with_options(const std::vector<BenchPoint>& points, const TuneOptions& options) {
  const std::vector<int> sets = options.all_options ? usual_option_sets() : options.option_sets;
  if (sets.empty()) return points;
  std::vector<BenchPoint> all;
  for (const int set : sets)
    for (const BenchPoint& point : points) {
      if (set != 0 && (point.device != "cuda" || point.direction == kDecode))
        throw UsageError("--option and --all-options are for forward and backward on CUDA");
      all.push_back(point);
      all.back().options = set;
    }
  return all;
}

int run_tune(const TuneOptions& options) {
  const std::string device = options.arch.empty() ? bench_device(options.grid.device) : "cuda";
  if (!options.arch.empty() && options.grid.device == Device::cpu)
    throw UsageError("--arch names an architecture of CUDA devices; leave it out with --device cpu");
  const TuneTarget target = target_of(options, device);
  require_usable(options, target);
  const std::vector<BenchPoint> points = with_options(bench_grid(options.grid, device), options);
  if (options.dry_run) return show_all(options, points, target);
  if (!options.csv.empty()) files::writable_place(options.csv);
  const AskedToEnd asked_to_end;
  const std::vector<TuneOutcome> outcomes = search_all(options, target, points, asked_to_end);
  if (!options.csv.empty()) {
    const std::string csv = tune_csv(outcomes, options.grid.command, device_of(target));
    files::write_files({{options.csv, {csv}}});
  }
  if (outcomes.empty() && !asked_to_end) throw UsageError("nothing was measured, see above");
  if (!outcomes.empty()) {
    show(outcomes);
    show_stored(outcomes, target);
  }
  return asked_to_end ? asked_to_end.exit_code() : kExitOk;
}

}  // namespace cuflash::cli
