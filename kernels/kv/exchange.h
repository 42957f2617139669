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
struct Posts {
  static constexpr int kUnitColumns = kPostedColumns, kRowUnits = C.dim_v / kUnitColumns;
  static constexpr int kUnitLanes = kUnitColumns / kEndColumns;  // of a warp: each has columns of its own ...
  static constexpr int kTurns = 32 / kUnitLanes;                 // ... and every so many-th split
  static constexpr int kUnitPosts = kUnitColumns / 2;
  static_assert(int64{kMostSplits} * C.tile_q * C.dim_v < int64{1} << 31);
  FlaggedPair *states, *sums;
  uint64 mark;
  int splits;

  __device__ __forceinline__ static Posts of(const KvParams& p, const KvItem& at) {
    const int64 first = tile_number(p, at) * p.splits * p.state_rows * kRowUnits;
    return {static_cast<FlaggedPair*>(p.split_states) + first,
            static_cast<FlaggedPair*>(p.split_sums) + first * kUnitPosts,
            empty_ticket(reinterpret_cast<uint64>(p.split_states)) | 1, p.splits};
  }
  __device__ static int unit_of(int row, int column) { return row * kRowUnits + column / kUnitColumns; }
  __device__ static int row_of(int unit) { return unit / kRowUnits; }
  __device__ static int first_column(int unit) { return unit % kRowUnits * kUnitColumns; }
  __device__ static int lane() { return lane_id() % kUnitLanes; }
  __device__ static int turn() { return lane_id() / kUnitLanes; }

  __device__ FlaggedPair* state(int unit, int split) const { return states + unit * splits + split; }
  // The first two columns of a lane; the other two lie kUnitLanes posts behind them, so that lanes are neighbours in memory.
  __device__ FlaggedPair* columns(int unit, int split, int lane) const {
    return sums + (unit * splits + split) * kUnitPosts + lane;
  }

  // By a warp, long before: they come to L2, so that who looks for what is not there yet does not wait for memory.
  __device__ __forceinline__ void ask_for(int unit) const {
    constexpr int kLine = 128 / sizeof(FlaggedPair);
    for (int n = lane_id() * kLine; n < splits * kUnitPosts; n += 32 * kLine) prefetch_l2(columns(unit, 0, 0) + n);
    for (int n = lane_id() * kLine; n < splits; n += 32 * kLine) prefetch_l2(state(unit, 0) + n);
  }

  // By a warp: columns of a unit, added up over `used` splits, in the lanes of the first turn. used: 0 to look at nothing.
  __device__ __forceinline__ SummedColumns<float> collect(int unit, int used, float factor) const {
    SummedColumns<float> all;
    int first = 0;
#pragma unroll 1
    do {
      add_some(all, unit, first, used, factor);
      first += kAtOnce * kTurns;
    } while (first < used);
    add_turns(all, factor);
    return all;
  }

 private:
  static constexpr int kAtOnce = 4;
  static constexpr int kMostLooks = 1 << 24;  // some ten seconds

  // Splits first + turn, and those whole turns behind it, of a lane. All posts are on their way together: none is looked at
  // before the last one was asked for.
  __device__ __forceinline__ void add_some(SummedColumns<float>& all, int unit, int first, int used,
                                           float factor) const {
    const int mine = (used - first - turn() + kTurns - 1) / kTurns;  // that exist; others are asked for in vain
    const auto split = [&](int n) { return max(0, min(first + turn() + n * kTurns, used - 1)); };
    FlaggedPair state[kAtOnce], left[kAtOnce], right[kAtOnce];
    bool missing;
    int looks = 0;
    do {
      // Splits that do not agree about lengths, because somebody writes to these meanwhile, would wait forever.
      if (++looks == kMostLooks) __trap();
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        state[n] = load_flagged(this->state(unit, split(n)));
        left[n] = load_flagged(columns(unit, split(n), lane()));
        right[n] = load_flagged(columns(unit, split(n), lane()) + kUnitLanes);
      }
      missing = false;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        missing |= (state[n].mark != mark) | (left[n].mark != mark) | (right[n].mark != mark);
    } while (__any_sync(0xffffffffu, missing && used != 0));
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      clear_flag(this->state(unit, split(n)), n < mine && lane() == 0);
      clear_flag(columns(unit, split(n), lane()), n < mine);
      clear_flag(columns(unit, split(n), lane()) + kUnitLanes, n < mine);
    }
    all.template add<kAtOnce>(mine, factor, [&](int n, RowState<float>& row, float(&x)[kEndColumns]) {
      row = {state[n].x[0], state[n].x[1]};
      x[0] = left[n].x[0], x[1] = left[n].x[1], x[2] = right[n].x[0], x[3] = right[n].x[1];
    });
  }
  // Lanes that have the same columns.
  __device__ __forceinline__ static void add_turns(SummedColumns<float>& all, float factor) {
    float top = all.row.top;
#pragma unroll
    for (int d = kUnitLanes; d < 32; d *= 2) top = larger(top, __shfl_xor_sync(0xffffffffu, top, d));
    const float weight = part_weight(all.row.top, top, factor);
    all.row = {top, all.row.sum * weight};
#pragma unroll
    for (int c = 0; c < kEndColumns; ++c) all.x[c] *= weight;
#pragma unroll
    for (int d = kUnitLanes; d < 32; d *= 2) {
      all.row.sum += __shfl_xor_sync(0xffffffffu, all.row.sum, d);
#pragma unroll
      for (int c = 0; c < kEndColumns; ++c) all.x[c] += __shfl_xor_sync(0xffffffffu, all.x[c], d);
    }
  }
};

}  // namespace cuflash
