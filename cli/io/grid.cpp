#include "cli/io/grid.h"

#include "files/tensors/output_files.h"
#include "files/text/json.h"

namespace cuflash::cli {

namespace {

constexpr double kMaxPairs = 0x1p53;

}  // namespace

std::vector<GridPoint> points_of(const GridOptions& options) {
  const ExplainOptions& all = options.problem;
  if (all.batch * all.heads > GridOptions::kMaxHeads)
    throw UsageError(
        join("--batch times --heads is ", all.batch * all.heads, ", must be at most ", GridOptions::kMaxHeads));
  if (!options.json.empty()) files::writable_place(options.json);
  std::vector<GridPoint> points;
  for (const int64_t length : options.lengths) {
    const int64_t len_q = options.len_q.value_or(length), len_k = all.seq_k.value_or(length);
    const double pairs =
        static_cast<double>(all.batch * all.heads) * static_cast<double>(len_q) * static_cast<double>(len_k);
    if (pairs > kMaxPairs)
      throw UsageError(join("--len ", length, " with this batch and these heads has ", pairs,
                            " pairs of queries and keys; at most 2^53 are counted"));
    GridPoint point{all, all};
    point.forward.seq_q = point.backward.seq_q = len_q;
    if (options.len_q) point.forward.seq_k = point.backward.seq_k = len_k;
    point.forward.lse = point.backward.backward = true;
    points.push_back(point);
  }
  return points;
}

std::string length_text(int64_t len_q, int64_t len_k) { return len_q == len_k ? join(len_k) : join(len_q, "x", len_k); }

std::string words_of(const GridOptions& options) {
  const ExplainOptions& p = options.problem;
  const Attention& a = p.attention;
  std::string text = join(name_of(p.dtype), ", batch ", p.batch, ", ", p.heads, " heads");
  if (p.heads_k) text += join(" over ", *p.heads_k);
  text += join(", head size ", p.dim);
  if (p.dim_v) text += join(" and ", *p.dim_v);
  if (options.len_q) text += join(", ", *options.len_q, " queries");
  if (p.seq_k) text += join(", ", *p.seq_k, " keys");
  if (a.causal) text += ", causal";
  if (a.window_left >= 0 || a.window_right >= 0) text += join(", window ", a.window_left, ",", a.window_right);
  if (a.alignment == Alignment::top_left) text += ", top-left";
  return text;
}

std::string json_of(const GridOptions& options) {
  const ExplainOptions& p = options.problem;
  return join("\"version\": ", files::json_string(cuflash_version()),
              ", \"dtype\": ", files::json_string(name_of(p.dtype)), ", \"batch\": ", p.batch,
              ", \"heads_q\": ", p.heads, ", \"heads_k\": ", p.heads_k.value_or(p.heads), ", \"head_dim\": ", p.dim,
              ", \"head_dim_v\": ", p.dim_v.value_or(p.dim), ", \"causal\": ", p.attention.causal ? "true" : "false",
              ", \"window\": [", p.attention.window_left, ", ", p.attention.window_right, "], \"align\": ",
              files::json_string(p.attention.alignment == Alignment::top_left ? "top-left" : "bottom-right"));
}

void write_json(const GridOptions& options, const std::string& text) {
  if (!options.json.empty()) files::write_files({{options.json, {text}}});
}

}  // namespace cuflash::cli
