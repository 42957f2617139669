#include "cli/grid.h"

#include "cli/json_text.h"
#include "cli/output_files.h"

namespace cuflash::cli {

namespace {

constexpr int64_t kLongest = int64_t{1} << 24, kMostHeads = 1 << 20;
constexpr double kMostPairs = 0x1p53;

void require(const char* flag, int64_t value, int64_t most) {
  if (value < 1 || value > most) throw UsageError(join(flag, " is ", value, ", must be between 1 and ", most));
}

}  // namespace

std::vector<GridPoint> points_of(const GridOptions& options) {
  const ExplainOptions& all = options.problem;
  require("--batch", all.batch, kMostHeads);
  require("--heads", all.heads, kMostHeads);
  require("--batch times --heads", all.batch * all.heads, kMostHeads);
  require("--len-k", all.seq_k.value_or(1), kLongest);
  if (!options.json.empty()) writable_place(options.json);
  std::vector<GridPoint> points;
  for (const int64_t length : options.lengths) {
    require("--len", length, kLongest);
    const double pairs = static_cast<double>(all.batch * all.heads) * static_cast<double>(length) *
                         static_cast<double>(all.seq_k.value_or(length));
    if (pairs > kMostPairs)
      throw UsageError(join("--len ", length, " with this batch and these heads has ", pairs,
                            " pairs of queries and keys; at most 2^53 are counted"));
    GridPoint point{all, all};
    point.forward.seq_q = point.backward.seq_q = length;
    point.forward.lse = point.backward.backward = true;
    points.push_back(point);
  }
  return points;
}

std::string words_of(const GridOptions& options) {
  const ExplainOptions& p = options.problem;
  const Attention& a = p.attention;
  std::string text = join(name_of(p.dtype), ", batch ", p.batch, ", ", p.heads, " heads");
  if (p.heads_k) text += join(" over ", *p.heads_k);
  text += join(", head size ", p.dim);
  if (p.dim_v) text += join(" and ", *p.dim_v);
  if (p.seq_k) text += join(", ", *p.seq_k, " keys");
  if (a.causal) text += ", causal";
  if (a.window_left >= 0 || a.window_right >= 0) text += join(", window ", a.window_left, ",", a.window_right);
  if (a.alignment == Alignment::top_left) text += ", top-left";
  return text;
}

std::string json_of(const GridOptions& options) {
  const ExplainOptions& p = options.problem;
  return join("\"version\": ", json_string(cuflash_version()), ", \"dtype\": ", json_string(name_of(p.dtype)),
              ", \"batch\": ", p.batch, ", \"heads_q\": ", p.heads, ", \"heads_k\": ", p.heads_k.value_or(p.heads),
              ", \"head_dim\": ", p.dim, ", \"head_dim_v\": ", p.dim_v.value_or(p.dim),
              ", \"causal\": ", p.attention.causal ? "true" : "false", ", \"window\": [", p.attention.window_left, ", ",
              p.attention.window_right, "], \"align\": ",
              json_string(p.attention.alignment == Alignment::top_left ? "top-left" : "bottom-right"));
}

void write_json(const GridOptions& options, const std::string& text) {
  if (!options.json.empty()) write_files({{options.json, {text}}});
}

}  // namespace cuflash::cli
