// Draws a case. The first outcome of every choice is the simplest.
#include "check/cases/draw.h"

#include <algorithm>
#include <array>
#include <limits>

#include "dtype.h"

namespace cuflash::check {

void draw_types(Case& c, Choices& choose, const Limits& limits) {
  c.dtype = choose.one_of<DType>({DType::f32, DType::f64, DType::f16, DType::bf16});
  const auto or_f32 = [&](uint32_t one_in) { return choose.chance(one_in) ? DType::f32 : c.dtype; };
  c.o_dtype = or_f32(4);
  c.dout_dtype = or_f32(4);
  c.gradient_dtype = or_f32(4);
  c.bias_dtype = or_f32(2);
  c.sink_dtype = or_f32(2);
  if (!limits.kernel_set) return;
  c.dtype = limits.kernel_set->dtype;
  const bool bias_is_f32 = c.bias_dtype == DType::f32, sink_is_f32 = c.sink_dtype == DType::f32;
  c.o_dtype = c.dout_dtype = c.gradient_dtype = limits.kernel_set->stored_as_f32 ? DType::f32 : c.dtype;
  c.bias_dtype = bias_is_f32 ? DType::f32 : c.dtype, c.sink_dtype = sink_is_f32 ? DType::f32 : c.dtype;
}

static int64_t draw_dim(Choices& choose) {
  if (choose.chance(5)) return choose.one_of<int64_t>({72, 80, 96, 120, 128, 129, 192, 256});
  return choose.one_of<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 24, 32, 33, 40, 64});
}

// A length of at most `most`: any small one, or one at the edge of a tile.
static int64_t draw_length(Choices& choose, int64_t most) {
  static const std::vector<int64_t> kEdges{1,  2,  3,  4,  7,  8,   15,  16,  17,  31,
                                           32, 33, 63, 64, 65, 127, 128, 129, 200, 257};
  if (!choose.chance(2)) return choose.between(1, std::clamp<int64_t>(most, 1, 40));
  const auto end = std::upper_bound(kEdges.begin(), kEdges.end(), most);
  const auto count = std::max<int64_t>(1, end - kEdges.begin());
  return kEdges[static_cast<size_t>(choose.between(0, count - 1))];
}

void draw_head_sizes(Case& c, Choices& choose, const Limits& limits) {
  if (limits.head_sizes.empty() && !limits.kernel_set) {
    c.dim = draw_dim(choose);
    c.dim_v = choose.chance(2) ? draw_dim(choose) : c.dim;
    return;
  }
  const HeadSizes sizes = limits.kernel_set ? limits.kernel_set->head_sizes : choose.one_of(limits.head_sizes);
  const bool largest = limits.kernel_set ? limits.kernel_set->rows == RowAlignment::padded : !choose.chance(2);
  const auto draw = [&](HeadSizes::Range r) { return largest ? r.largest : choose.between(r.smallest, r.largest); };
  c.dim = draw(sizes.dim);
  c.dim_v = sizes.dim.largest == sizes.dim_v.largest && !choose.chance(4) ? c.dim : draw(sizes.dim_v);
  if (limits.kernel_set && limits.kernel_set->rows == RowAlignment::vectors)
    c.dim = in_vectors(c.dim), c.dim_v = in_vectors(c.dim_v);
}

static void draw_shape(Case& c, Choices& choose, const Limits& limits) {
  c.heads_k = choose.one_of<int64_t>({1, 1, 2, 3});
  c.heads_q = c.heads_k * choose.one_of<int64_t>({1, 1, 1, 2, 3, 4, 5, 8});
  c.batch = choose.one_of<int64_t>({1, 1, 2, 3, 4});
  draw_head_sizes(c, choose, limits);
  const int64_t pairs = std::max<int64_t>(36, limits.work / (c.batch * c.heads_q * std::max(c.dim, c.dim_v)));
  c.len_q = draw_length(choose, std::min<int64_t>(pairs, 257));
  const bool square = !choose.chance(2) && c.len_q * c.len_q <= pairs;
  c.len_k = square ? c.len_q : draw_length(choose, std::clamp<int64_t>(pairs / c.len_q, 4, 257));
  if (choose.chance(60)) c.len_q = 0;
  if (choose.chance(60)) c.len_k = 0;
  if (choose.chance(120)) c.batch = 0;
}

// A decode step: one token or a few, against enough keys for several splits.
static void draw_decode(Case& c, Choices& choose, const Limits& limits) {
  if (!choose.chance(8)) return;
  c.len_q = choose.one_of<int64_t>({1, 1, 1, 2, 3, 5});
  const int64_t most = limits.work / (c.batch * c.heads_q * c.len_q * std::max(c.dim, c.dim_v) + 1);
  for (const int64_t length : {64, 511, 512, 513, 640, 1000, 1300})
    if (length <= most) c.len_k = length - (choose.chance(2) ? 0 : choose.between(0, 63));
}

// Several tiles of keys for one panel, so that its maximum changes from tile to tile.
static void draw_key_tiles(Case& c, Choices& choose, const Limits& limits) {
  if (!choose.chance(8)) return;
  c.batch = 1, c.heads_q = c.heads_k;
  c.len_q = choose.between(17, 40);
  const int64_t most = limits.work / (c.heads_q * c.len_q * std::max(c.dim, c.dim_v) + 1);
  for (const int64_t length : {257, 300, 512, 600})
    if (length <= most) c.len_k = length;
}

void draw_fused(Case& c, Choices& choose) {
  if (!choose.chance(8)) return;
  c.fused = choose.chance(2) ? Fused::kv : Fused::qkv;
  c.dim_v = c.dim;
  if (c.fused == Fused::qkv) c.len_q = c.len_k = std::min(c.len_q, c.len_k);
}

std::vector<int32_t> draw_lengths(Choices& choose, int64_t batch, int64_t length) {
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < batch; ++b) {
    const bool full = choose.chance(4);
    lengths.push_back(static_cast<int32_t>(full ? length : choose.chance(6) ? 0 : choose.between(0, length)));
  }
  return lengths;
}

static void draw_packed(Case& c, Choices& choose) {
  c.lengths_q = draw_lengths(choose, c.batch, c.len_q);
  c.lengths_k = c.fused == Fused::qkv ? c.lengths_q : draw_lengths(choose, c.batch, c.len_k);
  c.slack_q = choose.chance(3) ? choose.between(1, 5) : 0;
  c.slack_k = c.fused == Fused::qkv ? c.slack_q : choose.chance(3) ? choose.between(1, 5) : 0;
  const bool give = choose.chance(2);
  if (c.device == Device::cuda) c.len_q = std::max<int64_t>(1, c.len_q), c.len_k = std::max<int64_t>(1, c.len_k);
  // On the CPU a bound of 0 means that the library finds it, so a bound that is 0 cannot be given. CUDA requires a
  // bound.
  c.give_max_seqlen = (give && c.len_q > 0 && c.len_k > 0) || c.device == Device::cuda;
  if (c.give_max_seqlen) return;
  const auto longest = [](const std::vector<int32_t>& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  };
  c.len_q = longest(c.lengths_q);
  c.len_k = longest(c.lengths_k);
}

void draw_mode(Case& c, Choices& choose) {
  c.mode = choose.one_of<Mode>({Mode::dense, Mode::dense, Mode::padded, Mode::packed});
  if (c.mode == Mode::packed) return draw_packed(c, choose);
  if (c.mode == Mode::dense) return;
  const uint32_t which = choose.below(4);  // both, both, only k, only q
  if (which != 2) c.lengths_q = draw_lengths(choose, c.batch, c.len_q);
  if (which != 3) c.lengths_k = draw_lengths(choose, c.batch, c.len_k);
}

static int64_t draw_window(Choices& choose) {
  return choose.one_of<int64_t>({-1, -1, 0, 1, 2, 3, 7, 16, 33, 64, 1000, std::numeric_limits<int64_t>::max()});
}

static ScoreLayout draw_score_layout(const Case& c, Choices& choose) {
  ScoreLayout layout;
  for (size_t d = 0; d < layout.extents.size(); ++d) {
    const bool empty = std::array{c.batch, c.heads_q, c.len_q}[d] == 0;  // an empty tensor has nothing to repeat
    layout.extents[d] =
        choose.one_of<Extent>({Extent::full, Extent::full, Extent::one, empty ? Extent::full : Extent::repeated});
  }
  layout.gap = choose.chance(3) ? choose.between(1, 9) : 0;
  layout.offset = choose.chance(3) ? choose.between(1, 7) : 0;
  return layout;
}

void draw_options(Case& c, Choices& choose) {
  c.causal = choose.chance(3);
  c.alignment = choose.chance(3) ? Alignment::top_left : Alignment::bottom_right;
  if (choose.chance(3)) c.window_left = draw_window(choose);
  if (choose.chance(3)) c.window_right = draw_window(choose);
  if (choose.chance(5)) c.softcap = choose.one_of<double>({50, 20, 5, 0.5});
  if (choose.chance(4)) c.scale = choose.one_of<double>({1, 0.25, 0.05, -0.3, 0});
  if (choose.chance(4)) c.alibi_rank = choose.chance(2) ? 2 : 1;
  if (choose.chance(4)) c.bias = draw_score_layout(c, choose);
  c.dbias_repeats = choose.chance(2);
  if (choose.chance(4)) c.mask = draw_score_layout(c, choose);
  draw_mask_content(c, choose);
  c.sink = choose.chance(4);
  if (choose.chance(5)) {
    c.dropout_p = choose.one_of<double>({0.5, 0.1, 0.9, 7e-6});  // the last drops nothing, but scales
    c.dropout_seed = uint64_t{choose.below(1u << 31)} << 17 | 5;
    c.dropout_offset = choose.chance(2) ? uint64_t{choose.below(1u << 31)} << 9 : 0;
  }
}

void draw_mask_content(Case& c, Choices& choose) {
  c.mask_eighths = choose.one_of<uint32_t>({7, 4, 1, 8, 0});
  c.mask_pattern =
      choose.one_of<MaskPattern>({MaskPattern::pairs, MaskPattern::pairs, MaskPattern::blocks, MaskPattern::documents});
  c.mask_summary = choose.one_of<Case::Summary>({Case::Summary::none, Case::Summary::beside, Case::Summary::alone});
}

void draw_option_set(Case& c, Choices& choose, const OptionChoice& set) {
  c.softcap = set.softcap ? choose.one_of<double>({50, 20, 5, 0.5}) : 0;
  c.alibi_rank = set.alibi ? static_cast<int>(choose.between(1, 2)) : 0;
  c.bias = set.bias ? std::optional(draw_score_layout(c, choose)) : std::nullopt;
  c.mask = set.mask ? std::optional(draw_score_layout(c, choose)) : std::nullopt;
  c.dropout_p = set.dropout ? choose.one_of<double>({0.5, 0.1, 0.9, 1e-16}) : 0;
  c.dropout_seed = set.dropout ? uint64_t{choose.below(1u << 31)} << 17 | 5 : 0;
  c.dropout_offset = set.dropout && choose.chance(2) ? uint64_t{choose.below(1u << 31)} << 9 : 0;
}

Layout draw_layout(Choices& choose, Role role) {
  Layout layout;
  if (!choose.chance(2)) return layout;
  layout.order = choose.one_of<Order>({Order::bhsd, Order::bshd, Order::bshd, Order::sbhd, Order::hbsd});
  layout.gap = choose.one_of<int64_t>({0, 0, 1, 3, 8});
  layout.offset = choose.one_of<int64_t>({0, 0, 1, 2, 3, 5});
  const uint32_t oddity = choose.below(8);
  layout.odd_unit_strides = oddity == 5;
  layout.repeat_batch = role == Role::input && oddity == 6;
  layout.repeat_heads = role == Role::input && oddity == 7;
  return layout;
}

static void draw_memory(Case& c, Choices& choose) {
  for (Layout* layout : {&c.q, &c.k, &c.v, &c.dout}) *layout = draw_layout(choose, Role::input);
  for (Layout* layout : {&c.o, &c.dq, &c.dk, &c.dv}) *layout = draw_layout(choose, Role::output);
  c.lse.gap = choose.chance(4) ? choose.between(1, 5) : 0;
  c.lse.offset = choose.chance(4) ? choose.between(1, 5) : 0;
  c.dlse.gap = choose.chance(4) ? choose.between(1, 5) : 0;
}

static void draw_gradients(Case& c, Choices& choose) {
  if (choose.chance(8)) return;
  c.gradients.dq = !choose.chance(8);
  c.gradients.dk = !choose.chance(8);
  c.gradients.dv = !choose.chance(8);
  c.gradients.dbias = c.bias && !choose.chance(4);
  c.gradients.dsink = c.sink && !choose.chance(4);
  c.dlse_given = choose.chance(3);
}

int64_t in_vectors(int64_t elements) {
  constexpr int64_t kVector = 8;
  return (elements + kVector - 1) / kVector * kVector;
}

void align_rows(Layout& layout) { layout.gap = in_vectors(layout.gap), layout.offset = in_vectors(layout.offset); }
void align_rows(Case& c) {
  for (Layout* layout : {&c.q, &c.k, &c.v, &c.dout, &c.o, &c.dq, &c.dk, &c.dv}) align_rows(*layout);
}

void draw_execution(Case& c, Choices& choose) {
  c.threads = static_cast<int>(choose.one_of<int64_t>({1, 1, 1, 1, 1, 0, 2, 3, 4}));
  if (choose.chance(8)) c.other_threads = static_cast<int>(choose.between(1, 4));
  c.exact_workspace = choose.chance(6);
  c.own_parallel_for = choose.chance(8);
}

void draw_cuda_execution(Case& c, Choices& choose) {
  c.deterministic = choose.chance(2);
  c.tile_stats = choose.chance(2);
}

void draw_data(Case& c, Choices& choose) {
  c.flavour = choose.one_of<Flavour>({Flavour::normal, Flavour::normal, Flavour::normal, Flavour::outliers,
                                      Flavour::common_offset, Flavour::constant_rows, Flavour::late_peak, Flavour::tiny,
                                      Flavour::large_logits});
  c.data_seed = choose.below(1u << 31);
  c.garbage = choose.chance(2);
  c.live_nan = choose.chance(40) && c.dropout_p == 0;
}

void draw_call(Case& c, Choices& choose, const Limits& limits) {
  c.lse_asked = !choose.chance(6);
  draw_gradients(c, choose);
  draw_execution(c, choose);
  draw_data(c, choose);
  draw_memory(c, choose);
  if (c.device == Device::cuda) draw_cuda_execution(c, choose);
  if (!limits.kernel_set) return;
  const KernelSet& set = *limits.kernel_set;
  c.deterministic = set.deterministic;
  if (set.every_gradient && c.gradients.any()) c.gradients.dq = c.gradients.dk = c.gradients.dv = true;
  if (set.rows != RowAlignment::any) align_rows(c);
}

// So many short sequences that a GPU may have several CTAs on each SM, each of which computes several of them, or that
// each CTA of a GPU with 132 SMs takes one or two whole heads.
static void draw_many_sequences(Case& c, Choices& choose) {
  constexpr int64_t kTiles = 280, kTileQ = 64;  // tiles: two for every SM of a large GPU
  const int64_t dim = std::max(c.dim, c.dim_v);
  if (size_of(c.dtype) != 2 || c.batch == 0 || dim > 128 || !choose.chance(48)) return;
  c.len_q = dim <= 64 && choose.chance(3) ? choose.between(kTileQ + 1, 2 * kTileQ) : choose.between(1, kTileQ);
  c.len_k = c.fused == Fused::qkv || choose.chance(2) ? c.len_q : choose.between(1, c.len_q);
  const int64_t tiles = c.heads_q * ((c.len_q + kTileQ - 1) / kTileQ);
  c.batch = (kTiles + tiles - 1) / tiles;
  if (dim <= 64 && c.fused != Fused::qkv && choose.chance(2)) {
    constexpr int64_t kHeads = 119, kMoreKeys = 260;
    c.batch = (kHeads * choose.between(1, 2) + c.heads_k - 1) / c.heads_k;
    c.len_k = choose.between(2 * kTileQ + 1, kMoreKeys);  // more keys than a tile of two warpgroups
  }
  if (!c.lengths_q.empty()) c.lengths_q = draw_lengths(choose, c.batch, c.len_q);
  if (!c.lengths_k.empty()) c.lengths_k = c.fused == Fused::qkv ? c.lengths_q : draw_lengths(choose, c.batch, c.len_k);
}

Case draw_case(Choices& choose, const Limits& limits) {
  Case c;
  c.device = limits.device;
  draw_types(c, choose, limits);
  draw_shape(c, choose, limits);
  draw_decode(c, choose, limits);
  draw_key_tiles(c, choose, limits);
  draw_fused(c, choose);
  draw_mode(c, choose);
  draw_options(c, choose);
  if (limits.kernel_set) draw_option_set(c, choose, limits.kernel_set->options);
  else if (!limits.option_sets.empty()) draw_option_set(c, choose, choose.one_of(limits.option_sets));
  draw_call(c, choose, limits);
  if (c.device == Device::cuda) draw_many_sequences(c, choose);  // last, so that the other cases stay as they are
  return c;
}

}  // namespace cuflash::check
