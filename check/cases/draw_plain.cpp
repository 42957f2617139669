// Cases for the fastest kernels of a GPU: a 16-bit type, rows on 16-byte boundaries, several query tiles or few queries
// and many keys, and rarely other options than positional masks. Only one in hundreds of the cases of draw.cpp is of
// this kind, and it is short.
#include <algorithm>

#include "check/cases/draw.h"

namespace cuflash::check {
namespace {

constexpr int64_t kMoreWork = 32;   // relative to other cases, whose lengths seldom fill a tile
constexpr int64_t kLongest = 1100;  // exceeds some of the lengths at which plans change
constexpr int64_t kManyQueries = 1600;
constexpr int64_t kFewestPairs = 64;  // regardless of the work
// Limit of the elements of Q, K and V in most cases: filling, copying and comparing more takes longer than the oracle,
// and a few heads have enough tiles to reach every path of a kernel.
constexpr int64_t kMaxElements = 150'000, kMoreElements = 400'000;

int64_t draw_long_length(Choices& choose, int64_t most) {
  static const std::vector<int64_t> kEdges{63,  64,  65,  100, 128, 129, 192, 200,
                                           256, 257, 320, 385, 512, 513, 640, 1025};
  most = std::clamp<int64_t>(most, 1, kLongest);
  if (most < kEdges.front() || choose.chance(3)) return choose.between(1, most);
  const auto end = std::upper_bound(kEdges.begin(), kEdges.end(), most);
  return kEdges[static_cast<size_t>(choose.between(0, end - kEdges.begin() - 1))];
}

void draw_shape(Case& c, Choices& choose, const Limits& limits) {
  c.batch = choose.one_of<int64_t>({1, 1, 2, 2, 3, 3, 7});
  c.heads_k = choose.one_of<int64_t>({1, 1, 1, 1, 1, 2, 2, 16});
  c.heads_q = c.heads_k * choose.one_of<int64_t>({1, 1, 1, 2, 2, 3, 8});
  if (limits.head_sizes.empty() && !limits.kernel_set) {
    const auto draw = [&] { return choose.one_of<int64_t>({64, 128, 256, 96, 192, 32, 80, 160, 224}); };
    c.dim = draw(), c.dim_v = choose.chance(4) ? draw() : c.dim;
  } else {
    draw_head_sizes(c, choose, limits);
  }
  c.dim = in_vectors(c.dim), c.dim_v = in_vectors(c.dim_v);
  const int64_t work = c.batch * c.heads_q * std::max(c.dim, c.dim_v);
  const int64_t pairs = std::max(kFewestPairs, kMoreWork * limits.work / work);
  c.len_q = draw_long_length(choose, pairs);
  // The few tiles of a case are divided into tasks only if there are many queries.
  if (choose.chance(8)) c.len_q = std::min(pairs, choose.between(kLongest, kManyQueries));
  const bool square = !choose.chance(3) && c.len_q * c.len_q <= pairs;
  c.len_k = square ? c.len_q : draw_long_length(choose, pairs / c.len_q);
}

// Few queries and so many keys that several CTAs share them.
void draw_few_queries(Case& c, Choices& choose, const Limits& limits) {
  if (!choose.chance(3)) return;
  constexpr int64_t kMaxKeys = 5000;
  c.batch = choose.one_of<int64_t>({1, 1, 1, 2});
  c.len_q = choose.one_of<int64_t>({1, 1, 4, 16, 17, 33, 64, 65, 100, 128, 130, 200});
  const int64_t of_key = c.batch * c.heads_q * c.len_q * std::max(c.dim, c.dim_v);
  const int64_t most = std::clamp<int64_t>(kMoreWork * limits.work / of_key, kFewestPairs, kMaxKeys);
  c.len_k = choose.chance(2) ? choose.between(1, most) : most;
}

// Enough sequences that a GPU lists their tiles if they differ in length.
void draw_many_sequences(Case& c, Choices& choose, const Limits& limits) {
  if (!choose.chance(16)) return;
  c.batch = choose.between(100, 160), c.heads_k = 1, c.heads_q = 2;
  const int64_t pairs = kMoreWork * limits.work / (c.batch * c.heads_q * std::max(c.dim, c.dim_v));
  const int64_t most = std::max<int64_t>(2, kMoreElements / (c.batch * c.heads_q * std::max(c.dim, c.dim_v)));
  c.len_q = choose.between(1, std::max<int64_t>(2, std::min<int64_t>({pairs / 8, 70, most})));
  c.len_k = choose.between(1, std::max<int64_t>(2, std::min(pairs / c.len_q, most)));
}

// Several tiles of queries and of keys, for few heads. Eight heads that share one are more than the backward kernel
// for short sequences takes.
void draw_several_tiles(Case& c, Choices& choose) {
  if (!choose.chance(8)) return;
  constexpr int64_t kTile = 128, kWork = 15'000'000, kMaxQueries = 600;
  const int64_t widest = std::max(c.dim, c.dim_v);
  const bool shares = choose.chance(3) && widest <= 128;
  c.heads_k = 1, c.heads_q = shares ? 8 : choose.between(1, 2), c.batch = shares ? 1 : 2;
  const int64_t pairs = kWork / (c.batch * c.heads_q * widest);
  const auto draw = [&](int64_t most) { return choose.between(kTile + 1, std::max(kTile + 2, most)); };
  c.len_q = draw(std::min(pairs / kTile, kMaxQueries));
  c.len_k = draw(std::min(pairs / c.len_q, kLongest));
}

int64_t elements(const Case& c) {
  return c.batch * (c.heads_q * c.len_q * c.dim + c.heads_k * c.len_k * (c.dim + c.dim_v));
}

// Halves the number of KV heads, of heads that share one, and of sequences. Most cases keep two sequences, the others
// two heads that share one.
void limit_elements(Case& c, Choices& choose) {
  if (choose.chance(40)) return;
  const int64_t most = choose.chance(6) ? kMoreElements : kMaxElements;
  const bool keeps_batch = !choose.chance(3);
  const int64_t fewest = keeps_batch ? 2 : 1, smallest_group = keeps_batch ? 1 : 2;
  const auto half = [](int64_t count) { return (count + 1) / 2; };
  while (elements(c) > most) {
    const int64_t group = c.heads_q / c.heads_k;
    if (c.heads_k > 1) c.heads_k = half(c.heads_k), c.heads_q = c.heads_k * group;
    else if (c.batch > fewest && c.batch >= group) c.batch = half(c.batch);
    else if (group > smallest_group) c.heads_q = half(group);
    else if (c.batch > fewest) c.batch = half(c.batch);
    else break;
  }
}

void draw_position_masks(Case& c, Choices& choose) {
  c.causal = choose.chance(2);
  c.alignment = choose.chance(4) ? Alignment::top_left : Alignment::bottom_right;
  if (choose.chance(4)) c.window_left = choose.one_of<int64_t>({0, 17, 64, 100, 200});
  if (choose.chance(6)) c.window_right = choose.one_of<int64_t>({0, 17, 64, 100, 200});
}

// A bias or mask of 16-byte rows has a length of keys, and a gap, of whole vectors. Masks are bytes.
void align_scores(Case& c, Choices& choose) {
  constexpr int64_t kBytes = 16;
  if (choose.chance(5)) return;
  for (std::optional<ScoreLayout>* layout : {&c.bias, &c.mask})
    if (*layout) {
      const int64_t rest = c.len_k % kBytes;
      (*layout)->gap = (rest == 0 ? 0 : kBytes - rest) + ((*layout)->gap > 4 ? kBytes : 0);
      (*layout)->offset = (*layout)->offset > 4 ? kBytes : 0;
    }
}

}  // namespace

static Case draw_case_of_plain_shape(Choices& choose, const Limits& limits, const OptionChoice& set) {
  Case c;
  c.device = limits.device;
  c.dtype = choose.one_of<DType>({DType::bf16, DType::f16});
  if (limits.kernel_set) c.dtype = limits.kernel_set->dtype;
  c.o_dtype = c.dout_dtype = c.gradient_dtype = c.bias_dtype = c.sink_dtype = c.dtype;
  draw_shape(c, choose, limits);
  draw_few_queries(c, choose, limits);
  limit_elements(c, choose);
  draw_many_sequences(c, choose, limits);
  draw_several_tiles(c, choose);
  draw_fused(c, choose);
  draw_mode(c, choose);
  draw_position_masks(c, choose);
  draw_option_set(c, choose, set);
  draw_mask_content(c, choose);
  draw_call(c, choose, limits);
  align_rows(c);
  align_scores(c, choose);
  return c;
}

Case draw_plain_case(Choices& choose, const Limits& limits) { return draw_case_of_plain_shape(choose, limits, {}); }

Case draw_plain_case_with_options(Choices& choose, const Limits& limits) {
  const auto any = [&] { return choose.chance(2); };
  const auto draw = [&] {
    return limits.option_sets.empty() ? OptionChoice{any(), any(), any(), any(), any()}
                                      : choose.one_of(limits.option_sets);
  };
  const OptionChoice set = limits.kernel_set ? limits.kernel_set->options : draw();
  Case c = draw_case_of_plain_shape(choose, limits, set);
  if (set.bias && choose.chance(6)) c.bias_dtype = DType::f32;
  if (choose.chance(8)) c.scale = choose.one_of<double>({0.25, -0.3});
  c.sink = choose.chance(4);
  c.gradients.dsink &= c.sink, c.gradients.dbias &= c.bias.has_value();
  return c;
}

}  // namespace cuflash::check
