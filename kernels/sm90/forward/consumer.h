// Consumer warpgroup of the forward kernel: 64 queries of each query tile. wgmma.mma_async overlaps with softmax: while
// P V of one key tile runs, the warpgroup computes softmax of the next tile, whose scores were issued before.
//
//   wait K(n+1), V(n) | wait ping-pong turn | issue S = Q K(n+1) | issue O += P V(n) | pass turn | wait S | softmax |
//   wait O | rescale O if row_max changed | P = 16-bit probabilities
#pragma once

#include "attn/softmax.h"
#include "ptx/tma.h"
#include "ptx/warpgroup.h"
#include "sm90/consumer_sync.h"
#include "sm90/forward/key_step.h"
#include "sm90/forward/packed_rows.h"
#include "sm90/forward/pipeline.h"
#include "sm90/forward/score_coord.h"
#include "sm90/forward/split_store.h"
#include "sm90/lane_coord.h"
#include "sm90/products.h"
#include "sm90/store.h"
#include "sm90/tile_scheduler.h"

namespace cuflash {

template <Element E, int kKind>
struct RowSoftmaxOf {
  using Type = CachedShiftSoftmax<float, 1>;
};
template <Element E>
struct RowSoftmaxOf<E, kFixedMax> {
  using Type = FixedMaxSoftmax<float>;
};
template <Element E>
struct RowSoftmaxOf<E, kFirstMax> {
  using Type = FirstMaxSoftmax<E>;
};

template <Sm90ForwardConfig C>
struct Consumer {
  static constexpr Element E = C.element;
  static constexpr int kScoreTiles = C.tile_k / 8, kOutputTiles = C.dim_v / 8, kSteps = C.tile_k / 16;
  static_assert(!packs_heads(C) || (splits_keys(C) && C.options == 0));
  static_assert(size_of(E) == 2 && C.tile_k % 16 == 0 && C.dim_qk % 16 == 0 && C.dim_v % 32 == 0);
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using OutputProduct = WarpgroupProduct<E, C.dim_v, true>;
  static constexpr bool kReadsMask = reads_mask(C);
  using Options = ScoreOptions<E, C.options & ~int{kMaskTensor}, OptionSet::exact>;  // the mask is applied afterwards
  using Step = typename KeyStepOf<C>::Type;
  using Scores = Accumulator<float>[1][kScoreTiles];
  using Output = Accumulator<float>[1][kOutputTiles];
  using OperandA = unsigned[kSteps][4];
  static constexpr bool kHasFixedMax = (C.schedule & kFixedMax) != 0;
  static constexpr bool kUsesFirstMax = (C.schedule & kFirstMax) != 0;
  static constexpr int kSoftmaxKind = C.schedule & (kFixedMax | kFirstMax);
  static_assert(!kUsesFirstMax || (C.options & ~int{kMaskTensor}) == 0 || (!kReadsMask && !Options::kHasBias));
  static_assert(!kHasFixedMax || (Options::kIsTanh && !kReadsMask && kFastTanh<E>));
  using RowSoftmax = typename RowSoftmaxOf<E, kSoftmaxKind>::Type;
  using Turn = PingPong<(C.schedule & kPingPong) != 0, C.warpgroups, Pipeline<C>::kPingPongBarrier>;

  // Whether the call has score options other than the mask tensor.
  static constexpr bool has_options() { return (C.options & ~int{kMaskTensor}) != 0; }

  // Tile bounds of a TileInfo, read together, so that the warpgroup waits for shared memory once instead of once per
  // decision.
  struct KeyTiles {
    int rows_end, begin, end, warpgroup_begin, full_begin, full_end, warpgroup_end;
    bool half = false;  // the warpgroup computes only half of the tile before warpgroup_end
    __device__ explicit KeyTiles(const TileInfo& n)
        : rows_end(uniform(n.rows_end)),
          begin(uniform(n.begin)),
          end(uniform(n.end)),
          warpgroup_begin(uniform(n.warpgroup_begin)),
          full_begin(uniform(n.full_begin)),
          full_end(uniform(n.full_end)),
          warpgroup_end(uniform(n.warpgroup_end)) {
      if constexpr (halves_first_tile(C)) half = warpgroup_end >= kHalfTile, warpgroup_end -= half ? kHalfTile : 0;
    }
  };

  const Sm90ForwardParams& p;
  const AttentionParams& a;
  Pipeline<C> pipeline;
  int group;  // index of the consumer warpgroup
  TileScheduler scheduler;
  Ring<C.stages> keys, values, biases;
  int distance = 0;  // with ALiBi: position of the lane's first row minus that of its first column in key tile 0

  __device__ Consumer(const Sm90ForwardParams& p, const Pipeline<C>& pipeline, int group)
      : p(p), a(p.forward.attention), pipeline(pipeline), group(group) {}

  __device__ float scale_log2() const { return Options::kFoldsFactor ? p.scale_log2 : static_cast<float>(kLog2e); }

  static __device__ __forceinline__ LaneCoord lane_coord() { return lane_coord_in_warpgroup(); }

  __device__ void wait_queries() const {
    mbarrier_wait(pipeline.q_full(group, scheduler.round), pipeline.query_phase(scheduler.round));
  }
  __device__ void release_queries() const { release_stage(pipeline.q_empty(group, scheduler.round)); }
  __device__ void wait_keys() const { mbarrier_wait(pipeline.k_full(keys.stage), keys.phase); }
  __device__ void release_keys() {
    release_stage(pipeline.k_empty(keys.stage));
    keys.advance();
  }
  __device__ void wait_values() const { mbarrier_wait(pipeline.v_full(values.stage), values.phase); }
  __device__ void release_values() {
    release_stage(pipeline.v_empty(values.stage));
    values.advance();
  }

  // Wait for and release the bias tile, if TMA loads the bias.
  __device__ void wait_bias() const {
    if constexpr (has_bias_tiles(C)) mbarrier_wait(pipeline.bias_full(biases.stage), biases.phase);
  }
  __device__ void release_bias() {
    if constexpr (has_bias_tiles(C)) {
      __syncwarp();
      release_stage(pipeline.bias_empty(biases.stage));
      biases.advance();
    }
  }

  // Releases tiles that only the other warpgroups of the CTA need.
  __device__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      Turn::wait(group), Turn::pass(group);
      wait_keys(), release_keys();
      wait_values(), release_values();
      wait_bias(), release_bias();
    }
  }

  __device__ __forceinline__ void issue_scores(Scores& s) const {
    const auto q = rematerialize(pipeline.q(group, scheduler.round));
    issue_wgmma_ss<ScoreProduct, C.dim_qk>(s[0], q, 0, pipeline.k(keys.stage));
  }
  __device__ __forceinline__ void issue_output(Output& o, OperandA& probs) const {
    issue_wgmma_rs<OutputProduct>(o[0], probs, pipeline.v(values.stage));
  }

  __device__ RowSoftmax initial_softmax() const {
    if constexpr (kHasFixedMax) return {scale_log2(), p.fixed_max};
    else return RowSoftmax(scale_log2());
  }
  __device__ __forceinline__ static auto dropout_of(const ScoreCoord& coord, const Options& options, int first) {
    if constexpr (Options::kHasDropout) return ApplyDropout<Options>{options, coord.lane, coord.q_first, first};
    else return NoDropout{};
  }
  // Softcap and exponentials in one pass: exponentials of some scores overlap with the arithmetic of others. The few
  // tiles with masked pairs are masked between the two. A warp whose dot products are all in the polynomial's range
  // needs nothing else.
  template <bool kApplyMask>
  __device__ __forceinline__ void exponentiate_softcapped(const ScoreCoord& coord, RowSoftmax& softmax, Scores& s,
                                                          int first) const {
    const CapPolynomial& cap = p.cap;
    const float shift = softmax.shift, top = softmax.scale_log2 + shift;
    const auto exponent = [&](float x) { return cap_exponent(x, cap, top, shift); };
    if constexpr (kApplyMask) {
#pragma unroll
      for (int n = 0; n < 4 * kScoreTiles; ++n) s[0][n / 4].x[n % 4] = exponent(s[0][n / 4].x[n % 4]);
      hide(s, PositionMask<kWarpgroupRows, C.tile_k>(a, coord.sequence, coord.q_first, first, coord.lane.row,
                                                     coord.lane.column));
      softmax.exponentiate(s, [](float x) { return x; });
    } else if (!__any_sync(0xffffffffu, largest_magnitude(s) >= cap.limit)) {
      softmax.exponentiate(s, [&](float x) { return cap_exponent_in_range(x, cap, shift); });
    } else {
      softmax.exponentiate(s, exponent);
    }
  }
  // Whether ALiBi is linear in the columns of the tile, except where the tile crosses the diagonal. Tiles right of the
  // diagonal and across it are full only without a causal mask.
  static constexpr bool has_linear_alibi(bool applies_mask) { return !applies_mask && Options::kFoldsAlibi; }
  __device__ __forceinline__ RowOffset<float> add_alibi(const Options& options, Scores& s, int first) const {
    const int from_first = distance - first;
    RowOffset<float> offset{};
    if (is_left_of_diagonal<kScoreTiles>(from_first)) add_linear_penalties<true>(s, options, from_first, offset.of_row);
    else if (is_right_of_diagonal(from_first)) add_linear_penalties<false>(s, options, from_first, offset.of_row);
    else add_terms<false, kWarpgroupRows>(s, options, GlobalBiasMask<Options>{options, 0, 0}, {}, from_first);
    return offset;
  }
  // Applies options and masks. Returns the offset that makes the scores comparable with those of other tiles.
  template <bool kApplyMask>
  __device__ __forceinline__ auto to_scores(const ScoreCoord& coord, const Options& options, Scores& s,
                                            const Step& step) {
    const int first = step.tile * C.tile_k;
    if constexpr (has_linear_alibi(kApplyMask)) {
      if constexpr (Options::kHasSoftcap) apply_softcap(s, options);
      return add_alibi(options, s, first);
    } else {
      constexpr bool kByPosition = kApplyMask && !kReadsMask;
      if constexpr (has_bias_tiles(C)) {
        const BiasTileReader<E, typename Pipeline<C>::BiasTile> loaded{a, pipeline.bias(biases.stage, group),
                                                                       coord.lane};
        wait_bias();
        modify_and_mask<kByPosition, kWarpgroupRows>(s, a, coord.sequence, options, loaded, coord.lane, coord.q_first,
                                                     first);
        release_bias();
      } else {
        modify<kByPosition>(coord, options, s, first);
      }
      if constexpr (kApplyMask && kReadsMask) step.hide(s, a, coord.sequence, coord.lane, coord.q_first);
      return NoOffset{};
    }
  }
  // With kFirstMax: turns the scores of a key tile into probabilities, the operand of the next product. Returns what
  // softmax_step returns.
  template <bool kApplyMask>
  __device__ __forceinline__ bool first_max_step(const ScoreCoord& coord, const Options& options, RowSoftmax& softmax,
                                                 Scores& s, OperandA& next, const Step& step, float (&correction)[2]) {
    const auto offset = to_scores<kApplyMask>(coord, options, s, step);
    const auto dropout = dropout_of(coord, options, step.tile * C.tile_k);
    return softmax.step(
        s, next, [&](int r, float x) { correction[r] = x; }, offset, dropout);
  }
  // Applies masks, and the options that are not loaded as tiles.
  template <bool kApplyMask, int kTiles>
  __device__ __forceinline__ void modify(const ScoreCoord& coord, const Options& options,
                                         Accumulator<float> (&s)[1][kTiles], int first) const {
    if constexpr (!packs_heads(C))
      modify_and_mask<kApplyMask, kWarpgroupRows>(s, a, coord.sequence, options, coord.lane, coord.q_first, first);
    else if constexpr (kApplyMask) mask_packed_rows(s, a, coord.sequence, coord.lane, coord.q_first, first);
  }
  // modify<true> for the first key tile. The prologue has registers for hide_by_limit(), which is faster if the
  // window's left edge is elsewhere.
  template <int kTiles>
  __device__ __forceinline__ void modify_first_tile(const ScoreCoord& coord, const Options& options,
                                                    Accumulator<float> (&s)[1][kTiles], int first) const {
    if constexpr (has_options() || packs_heads(C)) modify<true>(coord, options, s, first);
    else
      hide_by_limit(s, PositionMask<kWarpgroupRows, kTiles * 8>(a, coord.sequence, coord.q_first, first, coord.lane.row,
                                                                coord.lane.column));
  }
  // Turns the scores of a key tile into probabilities. Returns whether the output has to be rescaled, and by which
  // correction.
  template <bool kApplyMask>
  __device__ __forceinline__ bool softmax_step(const ScoreCoord& coord, const Options& options, RowSoftmax& softmax,
                                               Scores& s, const Step& step, float (&correction)[2]) {
    bool rescales = false;
    if constexpr (kHasFixedMax) {
      exponentiate_softcapped<kApplyMask>(coord, softmax, s, step.tile * C.tile_k);
    } else {
      const auto offset = to_scores<kApplyMask>(coord, options, s, step);
      rescales = softmax.update_max(
          s, [&](int r, float x) { correction[r] = x; }, offset);
      softmax.exponentiate(s, offset);
    }
    if constexpr (Options::kHasDropout) dropout_of(coord, options, step.tile * C.tile_k).apply(s);
    return rescales;
  }

  // Whether a step reads its coordinates while the scores are computed: if ALiBi or dropout needs them.
  static constexpr bool coordinates_are_early(bool applies_mask) {
    const bool alibi_needs = Options::kHasAlibi && !has_linear_alibi(applies_mask);
    return kUsesFirstMax && (alibi_needs || Options::kHasDropout);
  }
  template <bool kApplyMask>
  __device__ __forceinline__ static auto coordinates(const TileInfo& info) {
    if constexpr (coordinates_are_early(kApplyMask)) return ReadCoord(info);
    else return LateCoord(info);
  }
  template <bool kApplyMask>
  __device__ __forceinline__ void wait_scores() const {
    if constexpr (coordinates_are_early(kApplyMask)) {
      do wgmma_wait<1>();  // loops for the reason given in wait_after_softmax
      while (a.group == 0);
    } else {
      wgmma_wait<1>();
    }
  }

  // Waits for P V. The compiler hoists a plain wgmma.wait_group above the exponentials, which then run after the
  // product instead of overlapping with it. It does not hoist the wait out of a loop; a.group is never 0, so the loop
  // runs once.
  __device__ __forceinline__ void wait_after_softmax() const {
    do wgmma_wait<0>();
    while ((C.schedule & kPinWait) != 0 && a.group == 0);
  }

  // Mainloop from `tile`, whose probabilities are ready, down to `last`, whose probabilities are ready afterwards. Q is
  // released as soon as the warpgroup's last scores are complete.
  template <bool kApplyMask>
  __device__ __forceinline__ void advance(int& tile, int last, const TileInfo& info, const Options& options,
                                          RowSoftmax& softmax, OperandA& probs, Output& o, bool ends) {
#pragma unroll 1
    for (; tile > last; --tile) {
      Scores s;
      wait_keys();
      wait_values();
      Turn::wait(group);
      issue_scores(s);
      issue_output(o, probs);
      Turn::pass(group);
      Step step(tile - 1, pipeline, keys.stage, kApplyMask || has_options());
      if constexpr (kApplyMask) step.load(a, info, group);
      const auto coord = coordinates<kApplyMask>(info);
      wait_scores<kApplyMask>();
      fence_operands(s);
      release_keys();
      if (ends && tile - 1 == last) release_queries();
      float correction[2];
      OperandA next;
      bool rescales = false;
      if constexpr (kUsesFirstMax)
        rescales = first_max_step<kApplyMask>(coord.of(info), options, softmax, s, next, step, correction);
      else rescales = softmax_step<kApplyMask>(coord.of(info), options, softmax, s, step, correction);
      wait_after_softmax();
      fence_operands(o), fence_operands(probs);
      release_values();
      if (rescales) {
#pragma unroll
        for (int r = 0; r < 2; ++r) softmax.rescale(o, r, correction[r]);
      }
      // a.group is never 0. Without the condition ptxas would pack the probabilities into registers that the running
      // product still reads, and wait for it first.
      if constexpr (!kUsesFirstMax) narrow<E>(probs, s[0]);
      else if (a.group != 0) copy(probs, next);
    }
  }

  // Scores of the first key tile, 64 keys at a time if the registers at launch do not allow for all of them.
  template <int kKeys>
  __device__ __forceinline__ void issue_first_scores(Accumulator<float> (&s)[kKeys / 8]) const {
    constexpr int kColumns = kKeys <= max_product_columns(C) ? kKeys : 64;
    static_assert(kKeys % kColumns == 0);
    using Product = WarpgroupProduct<E, kColumns, false>;
    const auto q = rematerialize(pipeline.q(group, scheduler.round));
    const auto k = pipeline.k(keys.stage);
    wgmma_fence();
#pragma unroll
    for (int first = 0; first < kKeys; first += kColumns) {
      auto& sums = reinterpret_cast<Accumulator<float>(&)[kColumns / 8]>(s[first / 8]);
      Product::start(sums, q.along_rows(0, 0), k.along_rows(0, first));
#pragma unroll
      for (int step = 1; step < C.dim_qk / 16; ++step)
        Product::add(sums, q.along_rows(step, 0), k.along_rows(step, first));
    }
    wgmma_commit();
  }

  // First key tile: scores and softmax without overlap. kKeys: the keys of the tile that matter.
  template <int kKeys>
  __device__ __forceinline__ void prologue(const TileInfo& info, const KeyTiles& tiles, const Options& options,
                                           RowSoftmax& softmax, OperandA& probs) {
    Accumulator<float> s[1][kKeys / 8];
    wait_keys();
    Turn::wait(group);
    issue_first_scores<kKeys>(s[0]);
    const ScoreCoord coord(info);
    if constexpr (Options::kFoldsAlibi)
      distance = coord.q_first + static_cast<int>(coord.sequence.shift) + coord.lane.row - coord.lane.column;
    wgmma_wait<0>();
    fence_operands(s);
    Turn::pass(group);
    const int tile = tiles.warpgroup_end - 1;
    Step step(tile, pipeline, keys.stage);
    step.load(a, info, group);
    if constexpr (kReadsMask) __syncwarp();  // all lanes have read the bits
    release_keys();
    if (tile == tiles.warpgroup_begin) release_queries();
    if constexpr (kUsesFirstMax) {
      if constexpr (kReadsMask) {
        if (step.tile < tiles.full_begin || step.tile >= tiles.full_end || !step.shows_all(group))
          step.hide(s, a, coord.sequence, coord.lane, coord.q_first);
      } else if (has_options() || tile < tiles.full_begin || tile >= tiles.full_end) {
        modify_first_tile(coord, options, s, tile * C.tile_k);
      }
      softmax.start(s, probs, dropout_of(coord, options, tile * C.tile_k));
    } else {
      float correction[2];
      if (tiles.full_begin <= step.tile && step.tile < tiles.full_end && step.shows_all(group))
        softmax_step<false>(coord, options, softmax, s, step, correction);
      else softmax_step<true>(coord, options, softmax, s, step, correction);
      narrow<E>(probs, s[0]);
    }
  }

  // Key tiles of the warpgroup in descending order: masked tiles at the end, full tiles, masked tiles at the beginning.
  // The probabilities of the first tile are ready; the last P V is still running on return.
  __device__ __forceinline__ void mainloop(const TileInfo& info, const KeyTiles& tiles, const Options& options,
                                           RowSoftmax& softmax, Output& o, OperandA& probs) {
    int tile = tiles.warpgroup_end - 1;
    // Two iterations over the same code: the second has no full tiles.
#pragma unroll 1
    for (int last = tiles.full_end;; last = tiles.warpgroup_begin) {
      advance<true>(tile, last, info, options, softmax, probs, o, last == tiles.warpgroup_begin);
      if (last == tiles.warpgroup_begin) break;
      advance<false>(tile, tiles.full_begin, info, options, softmax, probs, o,
                     tiles.full_begin == tiles.warpgroup_begin);
    }
    wait_values();
    issue_output(o, probs);
  }

  // The mainloop with a mask tensor, where any tile may be full. The tiles of a run are known to be full before their
  // keys have been loaded.
  __device__ __forceinline__ void masked_mainloop(const TileInfo& info, const KeyTiles& tiles, const Options& options,
                                                  RowSoftmax& softmax, Output& o, OperandA& probs) {
    int tile = tiles.warpgroup_end - 1, run_end = uniform(run_end_of<has_full_run(C)>(info));
#pragma unroll 1
    for (int last = max(min(run_end, tile), tiles.warpgroup_begin);; last = tiles.warpgroup_begin) {
#pragma unroll 1
      while (tile > last) {
        const bool ends = tile - 1 == tiles.warpgroup_begin;
        wait_keys();
        const Step next(tile - 1, pipeline, keys.stage);
        if (tiles.full_begin <= next.tile && next.tile < tiles.full_end && next.shows_all(group))
          advance<false>(tile, tile - 1, info, options, softmax, probs, o, ends);
        else advance<true>(tile, tile - 1, info, options, softmax, probs, o, ends);
      }
      if (!has_full_run(C) || run_end <= tiles.warpgroup_begin) break;
      run_end = 0;
      const int run_begin = uniform(run_begin_of<has_full_run(C)>(info));
      advance<false>(tile, run_begin, info, options, softmax, probs, o, run_begin == tiles.warpgroup_begin);
    }
    wait_values();
    issue_output(o, probs);
  }

  __device__ __forceinline__ static void finish_softmax(RowSoftmax& softmax) {
    softmax.reduce_row_sum();
    if constexpr (kHasFixedMax) softmax.finish();
  }
  // Computes the scale of the output rows and writes their LSE.
  __device__ __forceinline__ void finalize_rows(const TileInfo& info, const Options& options, RowSoftmax& softmax,
                                                float (&o_scale)[2]) const {
    const ForwardParams& f = p.forward;
    finish_softmax(softmax);
    const float sink = a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, info.h))
                                   : minus_infinity<float>();
    const LaneCoord lane = lane_coord();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = info.q_first + lane.row + 8 * r;
      const FinalizedRow<float> row =
          finalize_row(softmax.row_max[r], softmax.row_sum[r], options.natural_scale(), sink, options.keep_scale());
      const bool exists = i < info.len_q;
      o_scale[r] = exists ? row.o_scale : 0;
      if (f.lse.data && lane.column == 0 && i < info.rows_end)
        static_cast<float*>(f.lse.data)[offset_of(f.lse, info.b, info.h, int64{info.q_begin} + i)] =
            exists ? row.lse : minus_infinity<float>();
    }
  }
  // With a fixed reference, no probability of a row need be 1, or exact in 16 bits. The roundings of many keys average
  // out, those of few do not: a row with one key would differ from its value. So rows of one key tile are divided by the
  // sums of the rounded probabilities.
  __device__ __forceinline__ static void divide_by_rounded_sums(const OperandA& probs, const RowSoftmax& softmax,
                                                                float (&o_scale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned two = probs[step][2 * half + r];
          sum += widen<E>(static_cast<unsigned short>(two)) + widen<E>(static_cast<unsigned short>(two >> 16));
        }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (sum > 0) o_scale[r] *= softmax.row_sum[r] / sum;
    }
  }
  // Stores O with TMA from a staging buffer. Thread 0 of the warpgroup issues cp.async.bulk.tensor; the buffer is free
  // once its previous store has read it.
  template <int kFirst = 0>
  __device__ __forceinline__ void store_by_tma(const TileInfo& info, const RowStore<E, kOutputTiles>& rows) const {
    constexpr int kEnd = kOutputTiles - kFirst < staged_columns(C) / 8 ? kOutputTiles : kFirst + staged_columns(C) / 8;
    const auto staging = pipeline.o(group);
    const int thread = new_thread_id() % kWarpgroupThreads, barrier = Pipeline<C>::kStoreBarrier + group;
    if (thread == 0) tma_store_wait_read();
    named_barrier_sync(barrier, kWarpgroupThreads);
    rows.template to_shared<kFirst, kEnd>(staging, thread);
    async_proxy_fence();
    named_barrier_sync(barrier, kWarpgroupThreads);
    if (thread == 0) {
      const int batch = a.cu_q ? 0 : info.b;  // packed sequences are rows of one matrix
#pragma unroll
      for (int column = 8 * kFirst; column < 8 * kEnd; column += kPanelColumns)
        tma_store(p.o, staging.piece(0, column - 8 * kFirst), column, info.q_begin + info.q_first, info.h, batch);
      tma_store_commit();
    }
    if constexpr (kEnd < kOutputTiles) store_by_tma<kEnd>(info, rows);
  }
  __device__ __forceinline__ void store(const TileInfo& info, const float (&o_scale)[2], const Output& o) const {
    const LaneCoord lane = lane_coord();
    const int first = info.q_first + lane.row;
    const RowStore<E, kOutputTiles> rows{
        o[0], {o_scale[0], o_scale[1]}, {first < info.rows_end, first + 8 < info.rows_end}, lane.column / 2, a.dim_v};
    if constexpr ((C.schedule & kStoreBySmem) != 0) {
      // A TMA store of a packed tensor must not cross the end of the sequence: the next sequence follows.
      if (uniform(p.store_o_by_tma != 0 && (!a.cu_q || info.q_first + kWarpgroupRows <= info.rows_end)))
        return store_by_tma(info, rows);
    }
    rows.to_global(p.forward.o, offset_of(p.forward.o, info.b, info.h, int64{info.q_begin} + first));
  }

  // Writes rows without visible keys, or without any in their split.
  __device__ __forceinline__ void write_empty_rows(const TileInfo& info, const KeyTiles& tiles) {
    release_queries();
    skip(tiles.end - tiles.begin);
    RowSoftmax softmax = initial_softmax();
    if constexpr (splits_keys(C)) {
      finish_softmax(softmax);
      return store_split_states<packs_heads(C)>(p, split_info(info), lane_coord(), softmax);
    }
    float o_scale[2];
    finalize_rows(info, Options(a, info.sequence(), info.b, info.h), softmax, o_scale);
    const LaneCoord lane = lane_coord();
    for (int i = info.q_first + lane.row; i < min(info.q_first + lane.row + 16, info.rows_end); i += 8)
      zero_row<E>(p.forward.o, offset_of(p.forward.o, info.b, info.h, int64{info.q_begin} + i), lane.column / 2,
                  a.dim_v);
  }
  __device__ __forceinline__ void attend(const TileInfo& info, const KeyTiles& tiles) {
    const Options options(a, info.sequence(), info.b, info.h);
    RowSoftmax softmax = initial_softmax();
    OperandA probs;
    skip(tiles.end - tiles.warpgroup_end);
    constexpr int kFewKeys = halves_first_tile(C) ? C.tile_k / 2 : C.tile_k;
    if (tiles.half) prologue<kFewKeys>(info, tiles, options, softmax, probs);
    else prologue<C.tile_k>(info, tiles, options, softmax, probs);
    Output o = {};
    if constexpr (has_one_key_tile(C)) wait_values(), issue_output(o, probs);
    else if constexpr (kReadsMask) masked_mainloop(info, tiles, options, softmax, o, probs);
    else mainloop(info, tiles, options, softmax, o, probs);
    float o_scale[2];
    if constexpr (splits_keys(C)) finish_softmax(softmax);
    else finalize_rows(info, options, softmax, o_scale);
    wgmma_wait<0>();
    fence_operands(o), fence_operands(probs);
    release_values();
    if constexpr (kHasFixedMax && !splits_keys(C)) {
      if (tiles.warpgroup_end - tiles.warpgroup_begin == 1) divide_by_rounded_sums(probs, softmax, o_scale);
    }
    skip(tiles.warpgroup_begin - tiles.begin);
    if constexpr (splits_keys(C)) store_split<packs_heads(C)>(p, split_info(info), lane_coord(), softmax, o[0]);
    else store(info, o_scale, o);
  }

  __device__ __forceinline__ void run() {
    if (group == C.warpgroups - 1) Turn::pass(group);  // the first warpgroup starts
#pragma unroll 1
    for (; lists_tiles(C) || scheduler.has_tile(p.tile_order); scheduler.advance()) {
      wait_queries();
      const TileInfo& info = pipeline.info(group, scheduler.round);
      const KeyTiles tiles(info);
      if constexpr (lists_tiles(C)) {
        if (tiles.rows_end == kNoMoreTiles) break;
      }
      if (tiles.rows_end == 0) release_queries();
      else if (tiles.warpgroup_begin == tiles.warpgroup_end) write_empty_rows(info, tiles);
      else attend(info, tiles);
      converge();
    }
    if constexpr ((C.schedule & kStoreBySmem) != 0) tma_store_wait_read();
  }
};

}  // namespace cuflash
