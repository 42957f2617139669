#include "cuda/plan/key_splits.h"

#include <algorithm>

#include "checked.h"
#include "cuda/driver/rows.h"

namespace cuflash::cuda {
namespace {

// A model of a call's time in microseconds, with constants measured on an H200 (docs/lab/sm90_forward.md).
constexpr double kFlopsOfSm = 5.3e6, kBytesOfMemory = 3.7e6;  // operations and bytes per microsecond
constexpr double kStartOfTile =
    2.5;  // microseconds per query tile, in addition to its steps (docs/lab/sm90_forward.md)
constexpr double kStartOfReduction = 3.5, kBytesOfReduction = 3e6;

constexpr int64_t kMaxSplits = 128, kMaxRounds = 4;
constexpr int64_t kMaxBytes = int64_t{64} << 20;  // largest size of the partial results

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
double real(int64_t n) { return static_cast<double>(n); }

// Query tiles of one head, or of packed heads, of all sequences. For packed sequences only bounds are known here.
int64_t tiles_of_head(const Problem& p, const SplitTarget& t) {
  const int64_t of_longest = p.batch * divided_up(p.len_q * t.packed, t.tile_q);
  return p.packed() ? std::min(of_longest, p.total_q * t.packed / t.tile_q + p.batch) : of_longest;
}

// Key tiles of all query tiles of one sequence.
int64_t visited_tiles(const Problem& p, const SplitTarget& t) {
  const int64_t shift = p.top_left ? 0 : p.len_k - p.len_q;
  int64_t sum = 0;
  for (int64_t row = 0; row < p.len_q * t.packed; row += t.tile_q) {
    const int64_t first = row / t.packed, last = std::min((row + t.tile_q - 1) / t.packed, p.len_q - 1);
    const int64_t begin = std::clamp<int64_t>(first + shift - p.window_left, 0, p.len_k);
    const int64_t end = std::clamp<int64_t>(last + shift + p.window_right + 1, 0, p.len_k);
    if (begin < end) sum += divided_up(end, t.tile_k) - begin / t.tile_k;
  }
  return sum;
}

}  // namespace

int64_t max_visited_tiles(const Problem& p, int tile_q, int tile_k) {
  const int64_t seen = std::min(p.len_k, p.window_left + p.window_right + std::min<int64_t>(p.len_q, tile_q));
  return divided_up(seen, tile_k) + (seen < p.len_k ? 1 : 0);  // a window need not begin with a tile
}

KeySplitting key_splits(const Problem& p, const SplitTarget& t) {
  const int64_t heads = p.heads_q / t.packed, sms = t.num_sms;
  const int64_t tiles = (Checked(tiles_of_head(p, t)) * heads).at_most(int64_t{1} << 40);
  const int64_t longest = max_visited_tiles(p, t.tile_q, t.tile_k);
  if (tiles == 0 || tiles >= kMaxRounds / 2 * sms) return {1, 0, 0};
  const int64_t rows = p.heads_q * (p.packed() ? p.total_q : p.batch * p.len_q);
  const bool equal = p.window_right >= kUnbounded || p.packed();  // as far as is known here
  const double total = equal ? real(tiles * longest) : real(visited_tiles(p, t)) * real(p.batch * heads);
  // A single warpgroup does not overlap softmax with the products of another.
  const int64_t max_rows = std::min<int64_t>(divided_up(p.len_q * t.packed, 64) * 64, t.tile_q);
  const int64_t rows_of_tile = std::max<int64_t>(max_rows, 96);
  const double flops = 2 * real(rows_of_tile * t.tile_k * (p.dim_qk + p.dim_v));
  const int64_t keys = p.heads_k * (p.packed() ? p.total_k : p.batch * p.len_k);
  const double bytes = real(keys) * real(p.dim_qk + p.dim_v) * size_of(element_of(p.dtype));
  const double step = flops / kFlopsOfSm, reading = bytes / kBytesOfMemory + kStartOfTile;
  const double split_bytes = real(rows) * real(t.columns + 2) * 4;
  const auto time = [&](int64_t splits) {
    const int64_t rounds = divided_up(tiles * splits, sms);
    const double longest_item = real(divided_up(longest, splits)) * step + kStartOfTile;
    const double items = equal ? real(rounds) * longest_item
                               : std::max(longest_item, total * step / real(sms) + real(rounds) * kStartOfTile);
    const double loop = std::max(items, reading) + std::min(items, reading) / 4;  // they overlap, though not entirely
    return loop + (splits == 1 ? 0 : kStartOfReduction + 2 * split_bytes * real(splits) / kBytesOfReduction);
  };
  const double unsplit = time(1);
  int64_t best = 1;
  double least = unsplit;
  for (int64_t splits = 2; splits <= std::min(kMaxSplits, longest); ++splits) {
    if (tiles * splits > kMaxRounds * sms || split_bytes * real(splits) > real(kMaxBytes)) break;
    // More splits gain nothing if the longest one stays as long. The loop skips these numbers, because the call waits
    // for it.
    if (divided_up(longest, splits) == divided_up(longest, splits - 1)) continue;
    if (const double found = time(splits); found < least) best = splits, least = found;
  }
  return {best, least, unsplit};
}

}  // namespace cuflash::cuda
