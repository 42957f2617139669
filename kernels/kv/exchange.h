// Exchange of partials through L2 between the splits of a row tile, which all run at the same time. Part of the
// epilogue.
//
//   segment        32 columns of a row: every split publishes its partial, one warp of one split reduces them
//   flagged pair   two floats and a 64-bit flag (ptx/flagged_pair.h); a segment of a split has one pair for the row
//                  state and 16 for its columns
//
// The reader of a pair clears its flag, so no call finds pairs of an earlier call, not even when a graph is replayed.
// The 64-bit flag distinguishes a pair from old contents of the workspace.
#pragma once

#include "kv/split_reduce.h"
#include "ptx/flagged_pair.h"

namespace cuflash {

template <KvConfig C>
struct SplitExchange {
  static constexpr int kSegmentColumns = kExchangeColumns, kRowSegments = C.dim_v / kSegmentColumns;
  // kSegmentLanes lanes hold the columns of a segment; lane group g reduces splits g, g + kLaneGroups, ...
  static constexpr int kSegmentLanes = kSegmentColumns / kEpilogueColumns;
  static constexpr int kLaneGroups = 32 / kSegmentLanes;
  static constexpr int kSegmentPairs = kSegmentColumns / 2;
  static_assert(int64{kMaxSplits} * C.tile_q * C.dim_v < int64{1} << 31);
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
  // The first two columns of a lane. The other two are kSegmentLanes pairs later, so that adjacent lanes access
  // adjacent pairs.
  __device__ FlaggedPair* columns(int segment, int split, int lane) const {
    return sums + (segment * splits + split) * kSegmentPairs + lane;
  }

  // Called by one warp ahead of time: brings the pairs into L2, so that polling for missing ones does not go to DRAM.
  __device__ __forceinline__ void prefetch(int segment) const {
    constexpr int kLine = 128 / sizeof(FlaggedPair);
    for (int n = lane_id() * kLine; n < splits * kSegmentPairs; n += 32 * kLine)
      prefetch_l2(columns(segment, 0, 0) + n);
    for (int n = lane_id() * kLine; n < splits; n += 32 * kLine) prefetch_l2(state(segment, 0) + n);
  }

  // Called by one warp: reduces a segment over `used` splits; lane group 0 has the result. used == 0 polls for nothing.
  __device__ __forceinline__ PartialO<float> reduce(int segment, int used, float scale_log2) const {
    PartialO<float> all;
    int first = 0;
#pragma unroll 1
    do {
      reduce_batch(all, segment, first, used, scale_log2);
      first += kAtOnce * kLaneGroups;
    } while (first < used);
    reduce_lane_groups(all, scale_log2);
    return all;
  }

 private:
  static constexpr int kAtOnce = 4;
  static constexpr int kMaxPolls = 1 << 24;  // about ten seconds

  // Adds kAtOnce splits per lane: first + lane_group(), then every kLaneGroups-th. All loads are issued before the
  // first flag is checked.
  __device__ __forceinline__ void reduce_batch(PartialO<float>& all, int segment, int first, int used,
                                               float scale_log2) const {
    // Number of existing splits. Loads beyond them repeat the last split, and accumulate() drops them.
    const int valid = (used - first - lane_group() + kLaneGroups - 1) / kLaneGroups;
    const auto split = [&](int n) { return max(0, min(first + lane_group() + n * kLaneGroups, used - 1)); };
    FlaggedPair state[kAtOnce], left[kAtOnce], right[kAtOnce];
    bool pending;
    int polls = 0;
    do {
      // If lengths are overwritten during the call, splits may disagree about their number and would wait forever.
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
    all.template accumulate<kAtOnce>(valid, scale_log2, [&](int n, RowState<float>& row, float(&x)[kEpilogueColumns]) {
      row = {state[n].x[0], state[n].x[1]};
      x[0] = left[n].x[0], x[1] = left[n].x[1], x[2] = right[n].x[0], x[3] = right[n].x[1];
    });
  }
  // Combines the lanes that hold the same columns.
  __device__ __forceinline__ static void reduce_lane_groups(PartialO<float>& all, float scale_log2) {
    float row_max = all.row.row_max;
#pragma unroll
    for (int d = kSegmentLanes; d < 32; d *= 2) row_max = larger(row_max, __shfl_xor_sync(0xffffffffu, row_max, d));
    const float correction = correction_of(all.row.row_max, row_max, scale_log2);
    all.row = {row_max, all.row.row_sum * correction};
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) all.x[c] *= correction;
#pragma unroll
    for (int d = kSegmentLanes; d < 32; d *= 2) {
      all.row.row_sum += __shfl_xor_sync(0xffffffffu, all.row.row_sum, d);
#pragma unroll
      for (int c = 0; c < kEpilogueColumns; ++c) all.x[c] += __shfl_xor_sync(0xffffffffu, all.x[c], d);
    }
  }
};

}  // namespace cuflash
