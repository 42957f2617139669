#include "cli/bench/report.h"

#include "cli/bench/grid.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using Key = std::pair<std::string, BenchPoint>;  // a contestant's point

std::map<Key, const BenchResult*> by_key(const BenchFile& file) {
  std::map<Key, const BenchResult*> results;
  for (const BenchResult& result : file.results) results[{result.contestant, result.point}] = &result;
  return results;
}

// Three significant digits.
std::string short_number(double value) { return fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3); }

std::string speed_text(const BenchResult& result) {
  if (result.gbs) return short_number(*result.gbs) + " GB/s";
  if (!result.tflops) return "";
  return *result.tflops >= 1 ? short_number(*result.tflops) + " TFLOP/s"
                             : short_number(*result.tflops * 1e3) + " GFLOP/s";
}

std::string percent(const std::optional<double>& share) { return share ? fixed(100 * *share, 0) + "%" : ""; }

std::string ceilings_text(const BenchFile& file) {
  std::string text;
  for (const auto& [device, ceilings] : file.ceilings)
    for (const auto& [name, value] : ceilings)
      text += join(text.empty() ? "" : ", ", device, " ", name, " ", short_number(value));
  return text.empty() ? "none measured" : text;
}

}  // namespace

Table bench_table(const BenchFile& file) {
  const auto results = by_key(file);
  Table table{{"problem", "contestant", "ms", "quartiles", "speed", "of ceiling", "MHz", "extra memory", "to naive"},
              {}};
  for (const BenchResult& r : file.results) {
    const auto naive = results.find({kNaive, r.point});
    const bool has_ratio = naive != results.end() && r.contestant != kNaive;
    table.rows.push_back({point_text(r.point), r.contestant, short_number(r.ms),
                          join(short_number(r.ms_low), " - ", short_number(r.ms_high)), speed_text(r), percent(r.share),
                          r.clock_mhz ? fixed(*r.clock_mhz, 0) : "", r.extra_bytes ? bytes_text(*r.extra_bytes) : "",
                          has_ratio ? short_number(naive->second->ms / r.ms) + "x" : ""});
  }
  return table;
}

std::string bench_markdown(const BenchFile& file) {
  return join("- command: `", file.command, "`\n- cuflash ", file.version, ", ", file.date, "\n- machine: ", file.cpu,
              ", threads: ", file.threads, file.gpu ? ", GPU: " + *file.gpu : "", "\n- ceilings: ", ceilings_text(file),
              file.interrupted.empty() ? "" : "\n- interrupted: " + file.interrupted, "\n\n",
              bench_table(file).markdown());
}

Comparison compare(const BenchFile& old_file, const BenchFile& new_file, double tolerance) {
  const auto old_results = by_key(old_file);
  Comparison comparison;
  comparison.table.head = {"problem", "contestant", "old ms", "new ms", "new to old", ""};
  for (const BenchResult& now : new_file.results) {
    const auto found = old_results.find({now.contestant, now.point});
    if (found == old_results.end()) continue;
    const BenchResult& then = *found->second;
    const bool slower = now.contestant == kCuflash && now.ms > then.ms * (1 + tolerance) && now.ms_low > then.ms_high;
    ++comparison.matched, comparison.slower += slower;
    comparison.table.rows.push_back({point_text(now.point), now.contestant, short_number(then.ms), short_number(now.ms),
                                     fixed(now.ms / then.ms, 2), slower ? "SLOWER" : ""});
  }
  comparison.missing = old_results.size() - comparison.matched;
  return comparison;
}

}  // namespace cuflash::cli
