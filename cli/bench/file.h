// Benchmark results as one JSON file, format "cuflash-bench-1". Python's cuflash.bench writes the same format, cuflash.plot
// reads it; docs/measuring.md explains each member.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cuflash::cli {

// A measured problem, with the names of the file: device "cpu" or "cuda", direction "forward", "backward" or "decode".
struct BenchPoint {
  std::string device, direction, dtype;
  int64_t batch = 1, heads_q = 1, heads_k = 1, len_q = 1, len_k = 1, head_dim = 1, head_dim_v = 1;
  bool causal = false;
  int64_t page_size = 0;  // decode: rows of a page of the cache; 0: contiguous
  int options = 0;        // tuned::Options, only for `cuflash tune`; files have no points with options

  auto operator<=>(const BenchPoint&) const = default;
};

struct BenchResult {
  std::string contestant;
  BenchPoint point;
  double ms = 0, ms_low = 0, ms_high = 0;  // median and quartiles
  std::optional<double> tflops, gbs;       // rate of useful operations; decode: of reading keys and values once
  std::optional<double> share;             // share of the ceiling
  std::optional<double> clock_mhz;
  std::optional<double> extra_bytes;  // in addition to inputs and outputs
};

struct BenchFile {
  std::string command, version, date;
  std::string cpu;
  int64_t threads = 1;
  std::optional<std::string> gpu;
  std::map<std::string, std::map<std::string, double>> ceilings;  // by device: "f32_tflops", "read_gbs", ...
  std::vector<BenchResult> results;
  std::string interrupted;  // "3 of 12 points were measured" if a signal ended the run; not read back
};

std::string bench_json(const BenchFile& file);
std::string bench_csv(const BenchFile& file);

// Both throw files::FileError; the second without the name of a file. Unknown members are skipped.
BenchFile read_bench_file(const std::string& path);
BenchFile parse_bench_json(std::string_view text);

}  // namespace cuflash::cli
