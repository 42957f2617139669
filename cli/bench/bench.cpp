// Measures attention over a grid of problems, shows and stores the results, and compares them with earlier ones.
#include <array>
#include <cmath>
#include <ctime>
#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/bench/file.h"
#include "cli/bench/grid.h"
#include "cli/bench/measure.h"
#include "cli/bench/report.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "cpu/threads/threads.h"
#include "files/tensors/output_files.h"
#include "files/text/utf8.h"
#include "machine/cpu.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

std::set<std::string> contestants_of(const BenchOptions& options, const std::string& device) {
  if (options.contestants.empty()) return {kCuflash, kNaive};
  std::set<std::string> names(options.contestants.begin(), options.contestants.end());
  if (device == "cuda" && !names.contains(kCuflash))
    throw UsageError("--contestant naive runs only on the CPU; python -m cuflash.bench has torch-math on a GPU");
  return names;
}

// Fails before measuring if the results could not be written.
void require_usable(const BenchOptions& options) {
  if (!(options.seconds > 0 && options.seconds <= 600))
    throw UsageError(join("--seconds is ", options.seconds, ", must be larger than 0 and at most 600"));
  if (!(options.tolerance >= 0 && options.tolerance <= 100))
    throw UsageError(join("--tolerance is ", options.tolerance, ", must be from 0 to 100; 0.05 is 5%"));
  std::set<std::filesystem::path> places;
  for (const std::string* path : {&options.json, &options.csv, &options.markdown}) {
    if (!path->empty() && !places.insert(files::writable_place(*path)).second)
      throw UsageError(join(in_quotes(*path), " was given for two outputs; give each its own file"));
  }
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

BenchFile describe_run(const BenchOptions& options, const std::string& device) {
  BenchFile file;
  file.command = files::is_utf8(options.command) ? options.command : in_quotes(options.command);
  file.version = cuflash_version(), file.date = utc_date();
  file.cpu = machine::this_cpu().model;
  file.threads = options.threads > 0 ? options.threads : cpu::default_num_threads();
  if (device == "cuda") file.gpu = first_device_name();
  return file;
}

void write_outputs(const BenchOptions& options, const BenchFile& file) {
  const std::string json = bench_json(file), csv = bench_csv(file), markdown = bench_markdown(file);
  std::vector<files::OutputFile> files;
  if (!options.json.empty()) files.push_back({options.json, {json}});
  if (!options.csv.empty()) files.push_back({options.csv, {csv}});
  if (!options.markdown.empty()) files.push_back({options.markdown, {markdown}});
  files::write_files(files);
}

int show_comparison(const BenchOptions& options, const BenchFile& old_file, const BenchFile& file) {
  const Comparison comparison = compare(old_file, file, options.tolerance);
  if (comparison.matched == 0) {
    throw UsageError(join("--compare ", in_quotes(options.compare), ": none of its ", old_file.results.size(),
                          " points was measured here; measure with its command, ", in_quotes(old_file.command)));
  }
  std::cout << "\nagainst " << in_quotes(options.compare) << " of " << in_quotes(old_file.date) << "\n"
            << comparison.table.text();
  if (old_file.cpu != file.cpu || old_file.gpu != file.gpu || old_file.threads != file.threads)
    std::cout << "it was measured on another machine: " << in_quotes(old_file.gpu.value_or(old_file.cpu)) << ", "
              << old_file.threads << " threads\n";
  if (comparison.missing > 0) std::cout << comparison.missing << " of its points were not measured here\n";
  std::cout << comparison.matched << " points compared, " << comparison.slower << " slower by more than "
            << fixed(100 * options.tolerance, 0) << "% and beyond the noise\n";
  return comparison.slower == 0 ? kExitOk : kExitFailed;
}

// Measures until a signal arrives. Returns notes on points that were left out.
std::vector<std::string> measure_all(Measurer& measurer, const std::vector<BenchPoint>& points,
                                     const std::map<std::string, double>& ceilings, BenchFile& file,
                                     Progress& progress) {
  std::vector<std::string> notes;
  for (size_t n = 0; n < points.size(); ++n) {
    progress.announce(join(bar(n, points.size()), "  ", point_text(points[n])));
    progress.show(join(bar(n, points.size()), "  ", point_text(points[n])));
    try {
      stop_if_asked();
      for (BenchResult& result : measurer.measure(points[n], ceilings, notes))
        file.results.push_back(std::move(result));
    } catch (const Interrupted&) {
      file.interrupted = join(n, " of ", points.size(), " points were measured");
      break;
    }
  }
  return notes;
}

int report_interrupted(const BenchOptions& options, const BenchFile& file, const AskedToEnd& asked_to_end) {
  const bool has_file = !options.json.empty() || !options.csv.empty() || !options.markdown.empty();
  std::cout.flush();
  std::cerr << "cuflash: interrupted: " << file.interrupted
            << (file.results.empty() ? has_file ? "; no file is written" : ""
                : has_file           ? ", shown above and written"
                                     : ", shown above")
            << (options.compare.empty() ? "" : "; --compare needs all points and was skipped") << "\n";
  return asked_to_end.exit_code();
}

}  // namespace

int run_bench(const BenchOptions& options) {
  require_usable(options);
  std::optional<BenchFile> old_file;
  if (!options.compare.empty()) old_file = read_bench_file(options.compare);
  const std::string device = bench_device(options.device);
  const std::vector<BenchPoint> points = bench_grid(options, device);

  Measurer measurer({device, options.seconds, options.threads, contestants_of(options, device)});
  BenchFile file = describe_run(options, device);
  Progress progress;
  const AskedToEnd asked_to_end;
  progress.announce("measuring the limits of this machine ...");
  const auto ceilings = file.ceilings[device] = measurer.ceilings(points);
  const std::vector<std::string> notes = measure_all(measurer, points, ceilings, file, progress);
  progress.clear();

  for (const std::string& note : notes) std::cerr << note << "\n";
  if (file.results.empty() && !asked_to_end)
    throw FlashAttentionError(CUFLASH_OUT_OF_MEMORY, "nothing was measured, see above");
  if (!file.results.empty()) {
    std::cout << bench_table(file).text();
    for (const auto& [name, value] : ceilings) std::cout << "ceiling " << name << " " << fixed(value, 3) << "\n";
    write_outputs(options, file);
  }
  if (!file.interrupted.empty()) return report_interrupted(options, file, asked_to_end);
  return old_file ? show_comparison(options, *old_file, file) : kExitOk;
}

}  // namespace cuflash::cli
