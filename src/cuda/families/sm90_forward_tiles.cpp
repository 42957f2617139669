// Every config of the tables compiles without spills for all that it serves (tests/cuda/cuda_kernels_test). Those without
// options were measured on an H200 (docs/lab/sm90_forward.md); cuflash tune measures them again.
#include "cuda/families/sm90_forward_tiles.h"

#include <algorithm>
#include <cmath>

namespace cuflash::cuda {
namespace {

// Whether the last keys are hidden from the first queries.
enum Shape { full = 1, causal = 2, either = full | causal };

struct Tiles {
  int largest_qk, largest_v;
  Shape shape;
  int64_t longest_q;
  int warpgroups, tile_k, stages;
  Needs most;
  int schedule = kPingPong | kPinWait;
};
using enum Needs;
constexpr int64_t kAny = kUnbounded;
constexpr int kPrefetched = kStagedStore | kPrefetchQ;

// The first that fits is taken. Short and causal problems have smaller tiles: fewer rows of the last tile are empty,
// and fewer pairs on the diagonal are hidden. Three and four warpgroups have too few registers for dropout.
constexpr Tiles kTiles[] = {
    {64, 64, either, kAny, 3, 128, 4, fixed_max},                            //
    {128, 128, either, kAny, 2, 128, 2, fixed_max, kPrefetched},             //
    {64, 64, full, 512, 4, 64, 4, arithmetic, kPrefetched & ~kPingPong},     //
    {64, 64, full, 2048, 4, 64, 4, arithmetic, kStagedStore},                //
    {64, 64, causal, 2048, 4, 64, 4, arithmetic, kPrefetched & ~kPingPong},  //
    {64, 64, causal, 4096, 4, 64, 4, arithmetic, kStagedStore},              //
    {64, 64, either, kAny, 3, 128, 4, arithmetic},                           //
    {64, 64, either, kAny, 2, 128, 4, dropout},                              //
    {64, 64, either, kAny, 2, 128, 4, mask, kPrefetched},                    //
    {64, 64, either, kAny, 2, 128, 3, one_tile},                             //
    {64, 64, either, kAny, 2, 64, 4, everything},                            //
    {96, 96, either, 1024, 2, 128, 2, dropout, kStagedStore},                //
    {96, 96, either, kAny, 3, 96, 3, arithmetic},                            //
    {128, 128, full, 1024, 2, 128, 2, dropout, kStagedStore},                //
    {128, 128, causal, 1024, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, causal, 2048, 3, 64, 2, arithmetic, kPrefetched},             //
    {128, 128, causal, 4096, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, either, kAny, 3, 80, 4, arithmetic},                          //
    {128, 128, either, kAny, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, either, kAny, 2, 128, 2, mask, kStagedStore},                 //
    {128, 128, either, kAny, 2, 128, 2, one_tile},                           //
    {128, 128, either, kAny, 2, 64, 3, everything},                          //
    {192, 128, either, kAny, 2, 128, 2, mask},                               //
    {192, 192, either, kAny, 2, 112, 2, mask},                               //
    {192, 192, either, kAny, 2, 64, 2, everything},                          //
    {256, 256, full, 4096, 2, 64, 2, dropout, kStagedStore},                 //
    {256, 256, causal, 8192, 2, 64, 2, dropout, kStagedStore},               //
    {256, 256, either, kAny, 2, 80, 2, dropout},                             //
    {256, 256, either, kAny, 2, 64, 2, one_tile},                            //
    {256, 256, either, kAny, 2, 48, 2, everything},                          //
};

// Tiles of calls without options, or with a mask tensor alone, whose scores stay in registers until the softmax is sure of
// them (kFirstMax). Of those of the smallest head size that fits, the one with the least estimated time is taken. What has
// none takes those above.
struct PlainTiles : Tiles {
  double row_time;  // of a query, relative to the other tiles of these head sizes
};
constexpr int kNoTurns = kPinWait | kStoreBySmem | kFirstMax;
constexpr PlainTiles kPlainTiles[] = {
    {{64, 64, either, kAny, 4, 64, 4, arithmetic, kNoTurns | kPrefetchQ}, 1},                //
    {{96, 96, either, kAny, 3, 64, 2, arithmetic, kNoTurns | kPrefetchQ}, 1},                //
    {{96, 96, either, kAny, 2, 128, 2, arithmetic, kNoTurns | kPrefetchQ}, 1.09},            //
    {{128, 128, either, kAny, 3, 64, 2, mask, kNoTurns | kPrefetchQ}, 1},                    //
    {{128, 128, either, kAny, 2, 128, 2, arithmetic, kNoTurns | kPrefetchQ}, 1.09},          //
    {{128, 128, either, kAny, 2, 128, 2, mask, kPinWait | kFirstMax}, 1.09},                 //
    {{192, 128, either, kAny, 2, 128, 2, arithmetic, kPingPong | kPinWait | kFirstMax}, 1},  //
    {{192, 192, either, kAny, 2, 64, 2, arithmetic, kNoTurns}, 1},                           //
    {{256, 256, either, kAny, 2, 64, 2, arithmetic, kNoTurns}, 1},                           //
};

// Rows that the busiest CTA computes. Few causal tiles are not dealt out evenly: it has a long and a short one. Many are,
// and then the rows that a tile lacks, at its sequence's beginning, hardly count.
double rows_of_cta(const ForwardProblem& p, Shape shape, int tile_q, int num_sms) {
  constexpr double kManyRounds = 4;
  const auto rounds_of = [&](int rows) {
    return static_cast<double>(query_tiles(p, rows).at_most(kUnbounded)) / num_sms;
  };
  const double rounds = rounds_of(tile_q);
  if (shape == full) return tile_q * std::ceil(rounds);
  return rounds < kManyRounds ? tile_q * 2 * std::ceil(rounds / 2) : kWarpgroupRows * rounds_of(kWarpgroupRows);
}

}  // namespace

Checked query_tiles(const Problem& p, int tile_q, int64_t packed) {
  return Checked(p.batch) * (p.heads_q / packed) * ((p.len_q * packed + tile_q - 1) / tile_q);
}

Needs needs_of(const Sm90ForwardConfig& c) {
  if (c.schedule & kFixedMax) return fixed_max;
  const int terms = c.options & (kBias | kMaskTensor);
  const bool drops = (c.options & kDropout) != 0, has_tiles = (c.schedule & kTmaBias) != 0;
  if (terms == 0 && drops && (c.options & kSoftcap) && (c.options & kAlibi)) return one_tile;  // as few registers
  if (terms == 0) return drops ? dropout : arithmetic;
  if (terms == kMaskTensor && !drops) return mask;
  return has_tiles && !drops && terms != (kBias | kMaskTensor) ? one_tile : everything;
}

// A row with a window is as short as one of a short problem.
ForwardTiles tiles_for(const ForwardProblem& p, const Sm90ForwardConfig& c, int num_sms) {
  const Shape shape = p.window_right < kUnbounded ? causal : full;
  const int64_t length = std::min(p.len_q, p.window_left + p.window_right);
  const auto fits = [&](const Tiles& t) {
    return c.dim_qk <= t.largest_qk && c.dim_v <= t.largest_v && (t.shape & shape) != 0 && length <= t.longest_q &&
           needs_of(c) <= t.most;
  };
  const PlainTiles* best = nullptr;
  double least = 0;
  // Small head sizes have more keys in a tile of those above.
  const bool is_plain = c.options == 0 || (c.options == kMaskTensor && std::max(c.dim_qk, c.dim_v) > kPanelColumns);
  for (const PlainTiles& t : kPlainTiles) {
    if (!is_plain || !fits(t) || (best && t.largest_qk > best->largest_qk)) continue;
    const double time = t.row_time * rows_of_cta(p, shape, kWarpgroupRows * t.warpgroups, num_sms);
    if (!best || time < least) best = &t, least = time;
  }
  const Tiles& t = best ? *best : *std::find_if(std::begin(kTiles), std::end(kTiles) - 1, fits);  // the last serves all
  return {t.warpgroups, t.tile_k, t.stages, t.schedule};
}

}  // namespace cuflash::cuda
