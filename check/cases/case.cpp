#include "check/cases/case.h"

#include <cmath>
#include <numeric>

#include "dtype.h"
#include "error.h"

namespace cuflash::check {

static int64_t rows(const std::vector<int32_t>& lengths, int64_t slack) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) + slack;
}
int64_t Case::rows_q() const { return rows(lengths_q, slack_q); }
int64_t Case::rows_k() const { return rows(lengths_k, slack_k); }

double Case::scale_value() const { return scale.value_or(1 / std::sqrt(static_cast<double>(dim))); }

bool Case::sees(int64_t b, int64_t i, int64_t j) const {
  const int64_t c = alignment == Alignment::top_left ? 0 : length_k(b) - length_q(b);
  const int64_t behind = i + c - j;  // in this form no window overflows
  if (j >= length_k(b)) return false;
  if (causal && behind < 0) return false;
  if (window_left >= 0 && behind > window_left) return false;
  return causal || window_right < 0 || -behind <= window_right;
}

std::vector<int32_t> cumulative(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums{0};
  for (const int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

namespace {

const char* const kModes[] = {"dense", "padded", "packed"};
const char* const kOrders[] = {"bhsd", "bshd", "sbhd", "hbsd"};
const char* const kMaskPatterns[] = {"", ":blocks", ":documents"};
const char* const kSummaries[] = {"", "+summary", ":summary"};
const char* const kFused[] = {"none", "kv", "qkv"};
const char* const kFlavours[] = {"normal",    "outliers", "common_offset", "constant_rows",
                                 "late_peak", "tiny",     "large_logits"};

template <class Enum>
size_t index(Enum value) {
  return static_cast<size_t>(value);
}

}  // namespace

static std::string describe(const ScoreLayout& layout) {
  std::string text;
  for (const Extent extent : layout.extents) text += "f1r"[index(extent)];
  return text + join("+gap", layout.gap, "+offset", layout.offset);
}

std::string describe(const std::vector<int32_t>& lengths) {
  std::string text = "[";
  for (size_t b = 0; b < lengths.size(); ++b) text += join(b ? "," : "", lengths[b]);
  return text + "]";
}

std::string describe(const Layout& layout) {
  std::string text = kOrders[index(layout.order)];
  if (layout.gap) text += join("+gap", layout.gap);
  if (layout.offset) text += join("+offset", layout.offset);
  if (layout.repeat_batch) text += "+repeat_batch";
  if (layout.repeat_heads) text += "+repeat_heads";
  if (layout.odd_unit_strides) text += "+odd_unit_strides";
  return text;
}

namespace {

std::string describe_options(const Case& c) {
  std::string text;
  if (c.causal) text += " causal";
  if (c.alignment == Alignment::top_left) text += " top_left";
  if (c.window_left >= 0 || c.window_right >= 0) text += join(" window=", c.window_left, ",", c.window_right);
  if (c.softcap > 0) text += join(" softcap=", c.softcap);
  if (c.scale) text += join(" scale=", *c.scale);
  if (c.alibi_rank) text += join(" alibi_rank=", c.alibi_rank);
  if (c.bias)
    text += join(" bias=", describe(*c.bias), ":", name_of(c.bias_dtype), c.dbias_repeats ? ":dbias_repeats" : "");
  if (c.mask)
    text += join(" mask=", describe(*c.mask), ":", c.mask_eighths, "/8", kMaskPatterns[index(c.mask_pattern)],
                 kSummaries[index(c.mask_summary)]);
  if (c.sink) text += join(" sink=", name_of(c.sink_dtype));
  if (c.dropout_p > 0) text += join(" dropout=", c.dropout_p, ",", c.dropout_seed, ",", c.dropout_offset);
  return text;
}

std::string describe_lengths(const Case& c) {
  if (c.mode == Mode::dense) return " dense";
  std::string text =
      join(" ", kModes[index(c.mode)], " lengths_q=", describe(c.lengths_q), " lengths_k=", describe(c.lengths_k));
  if (c.mode == Mode::packed)
    text += join(" slack=", c.slack_q, ",", c.slack_k, c.give_max_seqlen ? " max_seqlen given" : "");
  return text;
}

std::string describe_memory(const Case& c) {
  std::string text = join(" fused=", kFused[index(c.fused)]);
  const std::pair<const char*, const Layout&> layouts[] = {
      {"q", c.q},       {"k", c.k},       {"v", c.v},   {"o", c.o},   {"lse", c.lse},
      {"dout", c.dout}, {"dlse", c.dlse}, {"dq", c.dq}, {"dk", c.dk}, {"dv", c.dv}};
  for (const auto& [name, layout] : layouts) text += join(" ", name, "=", describe(layout));
  return text;
}

std::string describe_run(const Case& c) {
  std::string text = c.lse_asked ? " lse" : "";
  if (c.gradients.any()) {
    text += " backward(";
    if (c.gradients.dq) text += " dq";
    if (c.gradients.dk) text += " dk";
    if (c.gradients.dv) text += " dv";
    if (c.gradients.dbias) text += " dbias";
    if (c.gradients.dsink) text += " dsink";
    text += c.dlse_given ? " from dlse too )" : " )";
  }
  if (c.device == Device::cuda) {
    text += join(" cuda", c.deterministic ? " deterministic" : "", c.tile_stats ? " tile_stats" : "");
  } else {
    text += join(" threads=", c.threads);
    if (c.other_threads) text += join(" then ", c.other_threads);
  }
  if (c.exact_workspace) text += " exact_workspace";
  if (c.own_parallel_for) text += " own_parallel_for";
  text += join(" data=", kFlavours[index(c.flavour)], ",", c.data_seed);
  if (c.garbage) text += " garbage";
  if (c.live_nan) text += " live_nan";
  return text;
}

}  // namespace

std::string describe(const Case& c) {
  return join(name_of(c.dtype), " o:", name_of(c.o_dtype), " dout:", name_of(c.dout_dtype),
              " gradients:", name_of(c.gradient_dtype), " B=", c.batch, " Hq=", c.heads_q, " Hk=", c.heads_k,
              " Sq=", c.len_q, " Sk=", c.len_k, " D=", c.dim, " Dv=", c.dim_v, describe_lengths(c), describe_options(c),
              describe_memory(c), describe_run(c));
}

}  // namespace cuflash::check
