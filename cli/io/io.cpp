// Prints the bytes moved, by formula, by the plan's tiles and by ncu, and the operations that masks save.
//
// --json FILE writes one object:
//   {"format": "cuflash-io-1", "version", "dtype", "batch", "heads_q", "heads_k", "head_dim", "head_dim_v", "causal",
//    "window": [left, right], "align": "bottom-right" | "top-left",    // window: -1 is unbounded
//    "arch": "sm_90a", "not_measured": null | "why ncu was not run",
//    "results": [{"direction": "forward" | "backward", "len_q", "len_k", "tile_q", "tile_k",
//                 "tiles_visited", "tiles_masked", "tiles_skipped",
//                 "bytes_naive", "bytes_paper",                        // by formula
//                 "bytes_read", "bytes_written", "bytes_added",        // by the plan's tiles; walk: their sum
//                 "bytes_least",                                       // every tensor once
//                 "dram_read", "dram_written", "l2_bytes",             // by ncu, null where it was not run
//                 "flops_dense", "flops_visited", "flops_visible"}]}  // of all pairs, visited tiles, visible pairs
// cli/io/traffic.h defines the quantities. Numbers are whole. There is one result for each direction and length, forward
// first, in the order of the lengths.
#include <iostream>
#include <optional>

#include "check/memory/device.h"
#include "cli/arguments/exit.h"
#include "cli/io/grid.h"
#include "cli/io/ncu.h"
#include "cli/io/traffic.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/table.h"
#include "cuda/driver/device.h"
#include "files/text/json.h"
#include "problem/describe.h"

namespace cuflash::cli {

namespace {

struct Point {
  int64_t len_q, len_k;
  Traffic traffic;
  std::optional<Measured> measured;
};

// no_gpu: why there is no GPU; "" if there is one.
cuda::Arch arch_for(const IoOptions& options, const std::string& no_gpu) {
  if (!options.problem.arch.empty()) return cuda::arch_named(options.problem.arch);
  return no_gpu.empty() ? cuda::device(0).arch : cuda::arch_named("sm_90a");
}

Traffic traffic_at(const ExplainOptions& options, const cuda::Arch& arch) {
  const Sketch sketch(options);
  const auto attention = detail::to_c(sketch.attention);
  Snapshot copies;
  if (options.backward) return traffic_of(describe(attention, detail::to_c(sketch.tensors), Memory{0}, copies), arch);
  return traffic_of(describe(attention, detail::to_c(sketch.outputs), Memory{0}, copies), arch);
}

std::string why_not_measured(const IoOptions& options, const cuda::Arch& arch, const std::string& no_gpu) {
  if (options.no_measure) return "--no-measure was given";
  if (!no_gpu.empty()) return no_gpu;
  const cuda::DeviceState& device = cuda::device(0);
  if (device.arch.number() == arch.number()) return "";
  return join("the GPU is ", cuda::target_of(device.arch), ", not ", cuda::target_of(arch));
}

// The command that ncu profiles.
std::vector<std::string> launch_words(const ExplainOptions& o) {
  const Attention& a = o.attention;
  std::vector<std::string> words{"io", "--launch", o.backward ? "backward" : "forward", "--dtype", name_of(o.dtype)};
  const auto add = [&](const char* flag, int64_t value) { words.push_back(flag), words.push_back(join(value)); };
  add("--batch", o.batch), add("--heads", o.heads), add("--head-dim", o.dim), add("--len", o.seq_q);
  if (o.heads_k) add("--heads-k", *o.heads_k);
  if (o.dim_v) add("--head-dim-v", *o.dim_v);
  if (o.seq_k) add("--len-k", *o.seq_k);
  if (a.causal) words.push_back("--causal");
  if (a.alignment == Alignment::top_left) words.insert(words.end(), {"--align", "top-left"});
  words.push_back(join("--window=", a.window_left, ",", a.window_right));
  return words;
}

// Tensors of a sketch in host memory; their values do not change the traffic.
class Filled {
 public:
  template <class T>
  void operator()(T& tensor) {
    int64_t count = size_of(tensor.dtype);
    for (int32_t d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
    memory_.emplace_back(static_cast<size_t>(count));
    tensor.data = memory_.back().data();
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

int launch(const GridPoint& point, bool backward) {
  if (const std::string why = check::why_no_cuda(); !why.empty()) throw FlashAttentionError(CUFLASH_NO_DEVICE, why);
  Sketch sketch(backward ? point.backward : point.forward);
  Filled fill;
  fill(sketch.attention.q), fill(sketch.attention.k), fill(sketch.attention.v);
  if (!backward) {
    fill(sketch.outputs.o), fill(sketch.outputs.lse);
    check::forward(Device::cuda, sketch.attention, sketch.outputs, {});
    return kExitOk;
  }
  BackwardTensors& t = sketch.tensors;
  fill(t.o), fill(t.lse), fill(t.dout), fill(t.dq), fill(t.dk), fill(t.dv);
  check::backward(Device::cuda, sketch.attention, t, {});
  return kExitOk;
}

Table table_of(const std::vector<Point>& points, bool measured) {
  Table table{{"length", "tile", "visited", "naive", "paper", "tiles", "least", "naive/tiles"}, {}};
  if (measured) table.head.insert(table.head.end(), {"DRAM by ncu", "L2 by ncu"});
  table.head.insert(table.head.end(), {"GFLOP dense", "in tiles", "visible", "saved"});
  for (const Point& point : points) {
    const Traffic& t = point.traffic;
    const TileStats& tiles = t.tiles;
    const auto share = [](double part, double whole) { return fixed(whole > 0 ? 100 * part / whole : 0, 1) + "%"; };
    const auto tile_count = static_cast<double>(tiles.visited + tiles.skipped);
    std::vector<std::string> row{length_text(point.len_q, point.len_k),
                                 join(tiles.tile_q, " x ", tiles.tile_k),
                                 share(static_cast<double>(tiles.visited), tile_count),
                                 bytes_text(t.naive),
                                 bytes_text(t.paper),
                                 bytes_text(t.walk.total()),
                                 bytes_text(t.least),
                                 fixed(t.naive / t.walk.total(), 1) + "x"};
    if (measured) {
      const Measured m = point.measured.value_or(Measured{});
      row.push_back(point.measured ? bytes_text(m.dram_read + m.dram_written) : "-");
      row.push_back(point.measured ? bytes_text(m.l2) : "-");
    }
    for (const double flops : {t.dense_flops, t.visited_flops, t.visible_flops}) row.push_back(fixed(flops / 1e9, 2));
    row.push_back(share(t.dense_flops - t.visited_flops, t.dense_flops));
    table.rows.push_back(row);
  }
  return table;
}

std::string result_json(const char* direction, const Point& point) {
  const Traffic& t = point.traffic;
  const auto measured = [&](double Measured::*of) {
    return point.measured ? fixed(*point.measured.*of, 0) : std::string("null");
  };
  return join("{\"direction\": ", files::json_string(direction), ", \"len_q\": ", point.len_q,
              ", \"len_k\": ", point.len_k, ", \"tile_q\": ", t.tiles.tile_q, ", \"tile_k\": ", t.tiles.tile_k,
              ", \"tiles_visited\": ", t.tiles.visited, ", \"tiles_masked\": ", t.tiles.masked,
              ", \"tiles_skipped\": ", t.tiles.skipped, ", \"bytes_naive\": ", fixed(t.naive, 0),
              ", \"bytes_paper\": ", fixed(t.paper, 0), ", \"bytes_read\": ", fixed(t.walk.read, 0),
              ", \"bytes_written\": ", fixed(t.walk.written, 0), ", \"bytes_added\": ", fixed(t.walk.added, 0),
              ", \"bytes_least\": ", fixed(t.least, 0), ", \"dram_read\": ", measured(&Measured::dram_read),
              ", \"dram_written\": ", measured(&Measured::dram_written), ", \"l2_bytes\": ", measured(&Measured::l2),
              ", \"flops_dense\": ", fixed(t.dense_flops, 0), ", \"flops_visited\": ", fixed(t.visited_flops, 0),
              ", \"flops_visible\": ", fixed(t.visible_flops, 0), "}");
}

class Report {
 public:
  explicit Report(const IoOptions& options)
      : options_(options),
        points_(points_of(options)),
        no_gpu_(check::why_no_cuda()),
        arch_(arch_for(options, no_gpu_)),
        not_measured_(why_not_measured(options, arch_, no_gpu_)) {}

  int run() {
    std::cout << words_of(options_) << "; tiles of the plan for " << cuda::target_of(arch_) << "\n"
              << "naive: score matrices in memory; paper: FlashAttention's formula; tiles: requests of the CTAs, of\n"
              << "which L2 serves a part; least: every tensor once; saved: operations in skipped tiles\n";
    write("forward", &GridPoint::forward);
    write("backward", &GridPoint::backward);
    if (!not_measured_.empty()) std::cout << "\nnot measured: " << not_measured_ << "\n";
    write_json(options_, join("{\"format\": \"cuflash-io-1\", ", json_of(options_),
                              ", \"arch\": ", files::json_string(cuda::target_of(arch_)), ", \"not_measured\": ",
                              not_measured_.empty() ? "null" : files::json_string(not_measured_), ", \"results\": [",
                              json_, "]}\n"));
    return kExitOk;
  }

 private:
  void write(const char* direction, ExplainOptions GridPoint::*of) {
    std::vector<Point> points;
    for (const GridPoint& grid : points_) {
      const ExplainOptions& o = grid.*of;
      points.push_back({o.seq_q, o.seq_k.value_or(o.seq_q), traffic_at(o, arch_), measure(o, direction)});
      json_ += (json_.empty() ? "\n" : ",\n") + result_json(direction, points.back());
    }
    progress_.clear();
    std::cout << "\n" << direction << "\n" << table_of(points, not_measured_.empty()).text();
  }

  // The first failure explains all of them.
  std::optional<Measured> measure(const ExplainOptions& o, const char* direction) {
    if (!not_measured_.empty()) return std::nullopt;
    progress_.announce(join("ncu: ", direction, ", length ", o.seq_q, " ..."));
    try {
      return measure_with_ncu(launch_words(o));
    } catch (const std::runtime_error& error) {
      not_measured_ = error.what();
      return std::nullopt;
    }
  }

  const IoOptions& options_;
  const std::vector<GridPoint> points_;
  const std::string no_gpu_;
  const cuda::Arch arch_;
  std::string not_measured_;  // "" as long as ncu works
  std::string json_;
  Progress progress_;
};

}  // namespace

int run_io(const IoOptions& options) {
  if (options.launch.empty()) return Report(options).run();
  if (options.lengths.size() != 1) throw UsageError("--launch computes one problem: give --len one length");
  return launch(points_of(options).front(), options.launch == "backward");
}

}  // namespace cuflash::cli
