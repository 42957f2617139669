// Where splits that run at one time leave their sums for each other.
//
//   unit   32 columns of a row: posted by every split, added up by one warp of one of them
//   post   two numbers and a mark (ptx/post.h); of a unit and a split one for the row's state, 16 for the columns
//
// Whoever has read a post takes its mark away, so that no call finds posts of a call before it, not even as a replay of a
// graph. Memory that was anything else is told from a post by the 64 bits of the mark.
#pragma once

#include "kv/split_reduce.h"
#include "ptx/flagged_pair.h"

namespace cuflash {

template <KvConfig C>
struct SplitExchange {
  static constexpr int kSegmentColumns = kExchangeColumns, kRowSegments = C.dim_v / kSegmentColumns;
  static constexpr int kSegmentLanes =
      kSegmentColumns / kEpilogueColumns;                 // of a warp: each has columns of its own ...
  static constexpr int kLaneGroups = 32 / kSegmentLanes;  // ... and every so many-th split
  static constexpr int kSegmentPairs = kSegmentColumns / 2;
  static_assert(int64{kMostSplits} * C.tile_q * C.dim_v < int64{1} << 31);
  FlaggedPair *states, *sums;
  uint64 flag;
  int splits;

  __device__ __forceinline__ static SplitExchange of(const KvParams& p, const WorkItem& item) {
    const int64 first = tile_number(p, item) * p.splits * p.state_rows * kRowSegments;
    return {static_cast<FlaggedPair*>(p.split_states) + first,
            static_cast<FlaggedPair*>(p.split_o) + first * kSegmentPairs,
            empty_ticket(reinterpret_cast<uint64>(p.split_states)) | 1, p.splits};
  }
  __device__ static int segment_of(int row, int column) { return row * kRowSegments + column / kSegmentColumns; }
  __device__ static int row_of(int segment) { return segment / kRowSegments; }
  __device__ static int first_column(int segment) { return segment % kRowSegments * kSegmentColumns; }
  __device__ static int lane() { return lane_id() % kSegmentLanes; }
  __device__ static int lane_group() { return lane_id() / kSegmentLanes; }

  __device__ FlaggedPair* state(int segment, int split) const { return states + segment * splits + split; }
  // The first two columns of a lane; the other two lie kUnitLanes posts behind them, so that lanes are neighbours in memory.
  __device__ FlaggedPair* columns(int segment, int split, int lane) const {
    return sums + (segment * splits + split) * kSegmentPairs + lane;
  }

  // By a warp, long before: they come to L2, so that who looks for what is not there yet does not wait for memory.
  __device__ __forceinline__ void prefetch(int segment) const {
    constexpr int kLine = 128 / sizeof(FlaggedPair);
    for (int n = lane_id() * kLine; n < splits * kSegmentPairs; n += 32 * kLine)
      prefetch_l2(columns(segment, 0, 0) + n);
    for (int n = lane_id() * kLine; n < splits; n += 32 * kLine) prefetch_l2(state(segment, 0) + n);
  }

  // By a warp: columns of a unit, added up over `used` splits, in the lanes of the first turn. used: 0 to look at nothing.
  __device__ __forceinline__ PartialO<float> reduce(int segment, int used, float factor) const {
    PartialO<float> all;
    int first = 0;
#pragma unroll 1
    do {
      reduce_batch(all, segment, first, used, factor);
      first += kAtOnce * kLaneGroups;
    } while (first < used);
    reduce_lane_groups(all, factor);
    return all;
  }

 private:
  static constexpr int kAtOnce = 4;
  static constexpr int kMaxPolls = 1 << 24;  // some ten seconds

  // Splits first + turn, and those whole turns behind it, of a lane. All posts are on their way together: none is looked at
  // before the last one was asked for.
  __device__ __forceinline__ void reduce_batch(PartialO<float>& all, int segment, int first, int used,
                                               float factor) const {
    const int valid =
        (used - first - lane_group() + kLaneGroups - 1) / kLaneGroups;  // that exist; others are asked for in vain
    const auto split = [&](int n) { return max(0, min(first + lane_group() + n * kLaneGroups, used - 1)); };
    FlaggedPair state[kAtOnce], left[kAtOnce], right[kAtOnce];
    bool pending;
    int polls = 0;
    do {
      // Splits that do not agree about lengths, because somebody writes to these meanwhile, would wait forever.
      if (++polls == kMaxPolls) __trap();
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        state[n] = load_flagged(this->state(segment, split(n)));
        left[n] = load_flagged(columns(segment, split(n), lane()));
        right[n] = load_flagged(columns(segment, split(n), lane()) + kSegmentLanes);
      }
      pending = false;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        pending |= (state[n].flag != flag) | (left[n].flag != flag) | (right[n].flag != flag);
    } while (__any_sync(0xffffffffu, pending && used != 0));
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      clear_flag(this->state(segment, split(n)), n < valid && lane() == 0);
      clear_flag(columns(segment, split(n), lane()), n < valid);
      clear_flag(columns(segment, split(n), lane()) + kSegmentLanes, n < valid);
    }
    all.template add<kAtOnce>(valid, factor, [&](int n, RowState<float>& row, float(&x)[kEpilogueColumns]) {
      row = {state[n].x[0], state[n].x[1]};
      x[0] = left[n].x[0], x[1] = left[n].x[1], x[2] = right[n].x[0], x[3] = right[n].x[1];
    });
  }
  // Lanes that have the same columns.
  __device__ __forceinline__ static void reduce_lane_groups(PartialO<float>& all, float factor) {
    float row_max = all.row.max;
#pragma unroll
    for (int d = kSegmentLanes; d < 32; d *= 2) row_max = larger(row_max, __shfl_xor_sync(0xffffffffu, row_max, d));
    const float weight = rescale_factor(all.row.max, row_max, factor);
    all.row = {row_max, all.row.sum * weight};
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) all.x[c] *= weight;
#pragma unroll
    for (int d = kSegmentLanes; d < 32; d *= 2) {
      all.row.sum += __shfl_xor_sync(0xffffffffu, all.row.sum, d);
#pragma unroll
      for (int c = 0; c < kEpilogueColumns; ++c) all.x[c] += __shfl_xor_sync(0xffffffffu, all.x[c], d);
    }
  }
};

}  // namespace cuflash
