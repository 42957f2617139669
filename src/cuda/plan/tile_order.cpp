#include "cuda/plan/tile_order.h"

#include <algorithm>
#include <cmath>

#include "cuda/driver/rows.h"

namespace cuflash::cuda {
namespace {

// The part of L2 for the keys and values of a group of heads; an H200 has 50 MiB. With more heads per group, all CTAs
// would wait for memory in the first of many rounds, and none in the others.
constexpr int64_t kGroupBytes = int64_t{20} << 20;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The share of its time that the average CTA waits for the busiest one in a group of causal heads. Tiles get shorter and
// every other round runs backwards, so that two full rounds are equally long for all CTAs. Of the last two, some CTAs
// get no tile of the second: `last` of the two rounds are full.
double idle_share(int64_t tiles, int64_t ctas) {
  const double rounds = static_cast<double>(tiles) / static_cast<double>(ctas);
  const double last = rounds - 2 * (std::ceil(rounds / 2) - 1);
  return last * (2 - last) / (rounds * rounds);
}

// The number of heads of a group: as many as fill an even number of rounds while the keys and values in use stay in L2.
// With a window, few keys are in use, and all tiles but the first of each head are equally long: more rounds spread
// those first tiles better.
int64_t heads_per_group(const Problem& p, int64_t heads, int64_t q_tiles, int64_t ctas, int tile_q) {
  const bool windowed = p.window_left < p.len_k;
  const int64_t keys = windowed ? std::min(p.len_k, p.window_left + p.window_right + 2 * tile_q) : p.len_k;
  const int64_t head_bytes = std::max<int64_t>(1, keys) * (p.dim_qk + p.dim_v) * size_of(element_of(p.dtype));
  const int64_t most = std::max<int64_t>(1, kGroupBytes / head_bytes) * (heads / (p.batch * p.heads_k));
  if (windowed && most >= heads) return heads;
  const int64_t pairs = std::max<int64_t>(1, most * q_tiles / (2 * ctas));
  const int64_t in_l2 = std::clamp<int64_t>(2 * ctas * pairs / q_tiles, 1, heads);
  if (windowed) return in_l2;

  // If such groups leave CTAs idle, more heads share a group: one head of 32,768 has 171 tiles of 192 queries, which
  // would keep 132 CTAs busy for two thirds of two rounds. Heads that long are read by many CTAs at the same pace, so
  // that it matters little whether all of their keys fit into L2.
  constexpr double kTooIdle = 0.05, kLittle = 0.03;
  constexpr int64_t kMoreHeads = 32;
  const auto idle = [&](int64_t width) {
    const int64_t groups = heads / width, last = heads - (groups - 1) * width;
    return (static_cast<double>((groups - 1) * width) * idle_share(width * q_tiles, ctas) +
            static_cast<double>(last) * idle_share(last * q_tiles, ctas)) /
           static_cast<double>(heads);
  };
  int64_t best = in_l2;
  double least = idle(in_l2);
  if (least <= kTooIdle) return in_l2;
  for (int64_t width = in_l2 + 1; width <= std::min(heads, in_l2 + kMoreHeads) && least > kLittle; ++width)
    if (const double share = idle(width); share < least) least = share, best = width;
  return best;
}

}  // namespace

TileOrder tile_order(const Problem& p, int tile_q, int64_t ctas, int64_t splits, int64_t packed) {
  const int64_t heads = p.batch * (p.heads_q / packed) * splits, q_tiles = divided_up(p.len_q * packed, tile_q);
  const bool descending = p.window_right < kUnbounded;
  const int64_t together = descending ? heads_per_group(p, heads, q_tiles, ctas, tile_q) : heads;
  const int64_t groups = heads / together, last = heads - (groups - 1) * together;
  int64_t group_rounds = divided_up(together * q_tiles, ctas);
  if (descending) group_rounds += group_rounds % 2;
  const int64_t rounds = (groups - 1) * group_rounds + divided_up(last * q_tiles, ctas);
  const auto number = [](int64_t n) { return static_cast<unsigned>(n); };
  return {number(heads),  number(q_tiles),      number(rounds), number(together),
          number(groups), number(group_rounds), descending};
}

int64_t listed_heads_per_group(const Problem& p, const ListedWork& work) {
  constexpr double kStartOfTile = 2, kLongest = 2;
  const int64_t rows = p.packed() ? p.total_k : p.batch * p.len_k;
  const int64_t head_bytes = std::max<int64_t>(1, rows) * (p.dim_qk + p.dim_v) * size_of(element_of(p.dtype));
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double longest = real(work.longest) + kStartOfTile;
  const double share =
      real(work.tiles) * (work.mean + kStartOfTile) / real(work.ctas);  // a CTA's share of the time of a head's tiles
  const auto balanced = static_cast<int64_t>(kLongest * longest / share / real(p.group())) + 1;
  // With a mask tensor the lengths of tiles are not known here, and most are short.
  const int64_t most = std::max(p.has_mask() ? 1 : balanced, kGroupBytes / head_bytes);
  const int64_t groups = divided_up(p.heads_k, most);
  return divided_up(p.heads_k, groups) * p.group();
}

}  // namespace cuflash::cuda
