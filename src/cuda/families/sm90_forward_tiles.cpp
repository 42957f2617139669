// Every config of the tables compiles without spills for all problems that it serves
// (tests/cuda/jit/cuda_kernels_test). Configs without options were measured on an H200 (docs/lab/sm90_forward.md);
// cuflash tune measures them again. Sets of options that it has measured come first, from sm90_measured_tables.h.
#include "cuda/families/sm90_forward_tiles.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/families/sm90_measured_tables.h"
#include "cuda/plan/head_sizes.h"

namespace cuflash::cuda {
namespace {

struct Tiles {
  int largest_qk, largest_v;
  int warpgroups, tile_k, stages;
  RegisterNeeds max_needs;
  int schedule = kPingPong | kPinWait;
};
using enum RegisterNeeds;

// Tiles for a softmax that takes the maximum of every key tile. The first that fits is used.
constexpr Tiles kTiles[] = {
    {64, 64, 3, 128, 4, fixed_max},                               //
    {128, 128, 2, 128, 2, fixed_max, kStagedStore | kPrefetchQ},  //
    {64, 64, 3, 128, 4, arithmetic},                              //
    {64, 64, 2, 128, 4, mask, kStagedStore | kPrefetchQ},         //
    {64, 64, 2, 128, 3, one_tile},                                //
    {64, 64, 2, 64, 4, everything},                               //
    {128, 128, 2, 128, 2, mask, kStagedStore},                    //
    {128, 128, 2, 128, 2, one_tile},                              //
    {128, 128, 2, 64, 3, everything},                             //
    {192, 128, 2, 128, 2, mask},                                  //
    {192, 192, 2, 112, 2, mask},                                  //
    {192, 192, 2, 64, 2, everything},                             //
    {256, 256, 2, 64, 2, fixed_max, kStagedStore},                //
    {256, 256, 2, 64, 2, one_tile},                               //
    {256, 256, 2, 48, 2, everything},                             //
};

// Tiles for kFirstMax, whose scores stay in registers until the softmax is final. Of the entries for the smallest head
// size that fits, the one with the least estimated time is used. Problems without such an entry use the tiles above.
// Options take registers, so that fewer warpgroups or keys fit.
struct FirstMaxTiles : Tiles {
  RegisterNeeds min_needs;
  double row_time;  // time per query, relative to the other tiles of these head sizes
};
constexpr int kNoTurns = kPinWait | kStoreBySmem | kFirstMax;
constexpr FirstMaxTiles kFirstMaxTiles[] = {
    {{64, 64, 4, 64, 4, plain, kNoTurns | kPrefetchQ}, plain, 1},                     //
    {{64, 64, 3, 96, 4, arithmetic, kNoTurns | kPrefetchQ}, arithmetic, 1},           //
    {{64, 64, 3, 64, 4, dropout, kNoTurns | kPrefetchQ}, dropout, 1},                 //
    {{64, 64, 3, 64, 4, mask, kNoTurns | kPrefetchQ}, mask, 1},                       //
    {{96, 96, 3, 64, 2, arithmetic, kNoTurns | kPrefetchQ}, plain, 1},                //
    {{96, 96, 2, 128, 2, arithmetic, kNoTurns | kPrefetchQ}, plain, 1.09},            //
    {{96, 96, 2, 96, 2, dropout, kNoTurns | kPrefetchQ}, dropout, 1},                 //
    {{128, 128, 3, 64, 2, arithmetic, kNoTurns | kPrefetchQ}, plain, 1},              //
    {{128, 128, 2, 128, 2, arithmetic, kNoTurns | kPrefetchQ}, plain, 1.09},          //
    {{128, 128, 2, 96, 2, dropout, kNoTurns | kPrefetchQ}, dropout, 1},               //
    {{128, 128, 3, 64, 2, mask, kNoTurns | kPrefetchQ}, mask, 1},                     //
    {{128, 128, 2, 128, 2, mask, kPinWait | kFirstMax}, mask, 1.09},                  //
    {{192, 128, 2, 128, 2, arithmetic, kPingPong | kPinWait | kFirstMax}, plain, 1},  //
    {{192, 192, 2, 64, 2, dropout, kNoTurns}, plain, 1},                              //
    {{256, 256, 2, 64, 2, dropout, kNoTurns}, plain, 1},                              //
};

// Tiles for short sequences: what waits in one CTA, for loads, products or stores of a tile, overlaps with the work of
// the other CTAs of its SM. The first that fits is used.
struct ShortTiles {
  int largest_dim, options;  // options that the kernels have registers for
  int warpgroups, tile_k;
  bool has_one_key_tile;
  int ctas;  // per SM, at most: tiles of a bias or a mask leave room for fewer
};
constexpr int kAny = ~0;
constexpr ShortTiles kShortTiles[] = {
    {64, kAny, 1, 64, true, 4},    //
    {64, kAny, 1, 80, true, 3},    //
    {64, 0, 2, 128, true, 2},      //
    {64, kAny, 1, 64, false, 3},   //
    {128, kAny, 1, 64, false, 2},  //
};
constexpr int64_t kShort = 256;      // queries, and keys
constexpr int64_t kShortRounds = 2;  // with fewer tiles, other CTAs of an SM have no work
constexpr int kShortStages = 3;      // at most
// Warpgroups of one CTA that keep an SM as busy as a warpgroup of its own CTA does, because they overlap less: an
// estimate.
constexpr double kWarpgroupsPerCta = 0.9;

// Rows that the busiest CTA computes. Few causal tiles cannot be distributed evenly: that CTA has a long and a short
// one. Many tiles can, and then the missing rows of a sequence's first tile hardly count.
double rows_of_cta(const ForwardProblem& p, int tile_q, int num_sms) {
  const bool causal = p.window_right < kUnbounded;
  constexpr double kManyRounds = 4;
  const auto rounds_of = [&](int rows) {
    return static_cast<double>(query_tiles(p, rows).at_most(kUnbounded)) / num_sms;
  };
  const double rounds = rounds_of(tile_q);
  if (!causal) return tile_q * std::ceil(rounds);
  return rounds < kManyRounds ? tile_q * 2 * std::ceil(rounds / 2) : kWarpgroupRows * rounds_of(kWarpgroupRows);
}

// The measured configs for these head sizes, options and kind of mask: of several rows, the one with the least
// estimated time. They serve only calls whose bias and softmax equal those of the measurement, and only sequences of
// one length, because kernels that list tiles take more registers.
std::optional<ForwardTiles> measured_tiles(const ForwardProblem& p, const Sm90ForwardConfig& c, int num_sms) {
  constexpr int kOfProblem = kTmaBias | kFixedMax;
  const bool causal = p.window_right < kUnbounded;
  if (p.packed() || p.used_q || p.used_k) return std::nullopt;
  const MeasuredForward* best = nullptr;
  double least = 0;
  for (const MeasuredForward& t : kMeasuredForward) {
    if (t.dim_qk != c.dim_qk || t.dim_v != c.dim_v || t.options != c.options || t.causal != causal ||
        (t.schedule & kOfProblem) != (c.schedule & kOfProblem))
      continue;
    const double time = t.row_time * rows_of_cta(p, kWarpgroupRows * t.warpgroups, num_sms);
    if (!best || time < least) best = &t, least = time;
  }
  if (!best) return std::nullopt;
  return ForwardTiles{best->warpgroups, best->tile_k, best->stages, best->schedule};
}

}  // namespace

Checked query_tiles(const Problem& p, int tile_q, int64_t packed) {
  return Checked(p.batch) * (p.heads_q / packed) * ((p.len_q * packed + tile_q - 1) / tile_q);
}

RegisterNeeds needs_of(const Sm90ForwardConfig& c) {
  if (c.options == 0) return plain;
  if (c.schedule & kFixedMax) return fixed_max;
  const int terms = c.options & (kBias | kMaskTensor);
  const bool drops = (c.options & kDropout) != 0, has_tiles = (c.schedule & kTmaBias) != 0;
  const bool both = (c.options & kSoftcap) != 0 && (c.options & kAlibi) != 0;
  if (terms == 0 && drops && both)
    return std::max(c.dim_qk, c.dim_v) > 192 ? everything : one_tile;  // these need as few registers
  if (terms == 0) return drops || both ? dropout : arithmetic;
  if (terms == kMaskTensor && !drops) return mask;
  return has_tiles && !drops && terms != (kBias | kMaskTensor) ? one_tile : everything;
}

namespace {

// Whether kFirstMax is used. It is not used with a fixed reference, and with a mask tensor only if there are no other
// options. It is not used with ALiBi if a query sees later keys. These are visited first, so that later tiles exceed
// the first maximum, and with 64 columns that costs more than larger key tiles save (0.70 instead of 0.75 of the plain
// kernel's speed).
bool keeps_first_max(const ForwardProblem& p, const Sm90ForwardConfig& c) {
  const bool rises =
      c.options == kAlibi && p.window_right >= kUnbounded && std::max(c.dim_qk, c.dim_v) <= kPanelColumns;
  return needs_of(c) != fixed_max && !rises && (needs_of(c) != mask || c.options == kMaskTensor);
}

}  // namespace

ForwardTiles tiles_for(const ForwardProblem& p, const Sm90ForwardConfig& c, int num_sms) {
  if (const std::optional<ForwardTiles> measured = measured_tiles(p, c, num_sms)) return *measured;
  const auto fits = [&](const Tiles& t) {
    return c.dim_qk <= t.largest_qk && c.dim_v <= t.largest_v && needs_of(c) <= t.max_needs;
  };
  const FirstMaxTiles* best = nullptr;
  double least = 0;
  const bool keeps = keeps_first_max(p, c);
  for (const FirstMaxTiles& t : kFirstMaxTiles) {
    if (!keeps || !fits(t) || needs_of(c) < t.min_needs || (best && t.largest_qk > best->largest_qk)) continue;
    const double time = t.row_time * rows_of_cta(p, kWarpgroupRows * t.warpgroups, num_sms);
    if (!best || time < least) best = &t, least = time;
  }
  const Tiles& t = best ? *best : *std::find_if(std::begin(kTiles), std::end(kTiles) - 1, fits);  // the last serves all
  return {t.warpgroups, t.tile_k, t.stages, t.schedule};
}

void fit_to_sequences(Sm90ForwardConfig& c, const ForwardProblem& p) {
  if (ctas_per_sm(c) == 1) return;
  c.dim_qk = padded_head_size(p.dim_qk), c.dim_v = padded_head_size(p.dim_v);
  if (p.len_k <= c.tile_k) c.schedule = (c.schedule & ~kFirstMax) | kOneKeyTile;
}

void take_short_tiles(Sm90ForwardConfig& c, const ForwardProblem& p, const Arch& arch, int num_sms,
                      Limits (*limits)(const Sm90ForwardConfig&, const Arch&)) {
  if (p.cache || std::max(p.len_q, p.len_k) > kShort) return;  // no kernel with pages was compiled for these tiles
  const auto parts = [](int64_t length, int size) { return static_cast<double>((length + size - 1) / size); };
  // Warpgroups of a usual tile that have rows, and the keys that each of them computes.
  const double busy = parts(p.len_q, kWarpgroupRows) / parts(p.len_q, tile_q_of(c));
  const double keys = parts(p.len_k, c.tile_k) * c.tile_k;
  const int dim = std::max(c.dim_qk, c.dim_v);
  // Dropout beside kFirstMax takes too many registers.
  const bool keeps = keeps_first_max(p, c) && (c.options & (kBias | kDropout)) == 0;
  const int schedule = (c.schedule & (kTmaBias | kFixedMax)) | kPinWait | kPrefetchQ | (keeps ? kFirstMax : 0);
  for (const ShortTiles& t : kShortTiles) {
    const int tile_q = kWarpgroupRows * t.warpgroups;
    if (dim > t.largest_dim || (c.options & ~t.options) != 0 || p.len_q <= tile_q - kWarpgroupRows ||
        (t.has_one_key_tile && p.len_k > t.tile_k) ||
        query_tiles(p, tile_q).at_most(kShortRounds * num_sms) < kShortRounds * num_sms)
      continue;
    const double per_cta = kWarpgroupsPerCta * t.warpgroups * (t.has_one_key_tile ? keys / t.tile_k : 1);
    for (int ctas = t.ctas; ctas > 1 && busy < per_cta * ctas; --ctas)
      for (int stages = kShortStages; stages >= 2; --stages) {
        Sm90ForwardConfig tiled = c;
        tiled.warpgroups = t.warpgroups, tiled.tile_k = t.tile_k, tiled.stages = stages;
        tiled.schedule = schedule | (ctas - 1) * kMoreCtas;
        fit_to_sequences(tiled, p);
        if (limits(tiled, arch).fault != Fault::none) continue;
        c = tiled;
        return;
      }
  }
}

}  // namespace cuflash::cuda
