// Row statistics and zeros in dq_accum, computed by single warps of the main kernel as backward_prepare does. The
// prepare kernel is bound by DRAM, which the mainloop hardly uses, so it prepares only the heads that the main kernel
// begins with. Warps of the producer warpgroup that have nothing to load prepare the other heads.
//
// These warps have 32 registers. They serve calls whose rows are aligned and have the type of Q (defers_prepare() of
// the family). They flag a query tile wherever the prepare kernel would check Q: an unneeded flag only costs time, and
// only in masked tiles.
#pragma once

#include "portable/backward_prepare.h"
#include "ptx/barrier.h"
#include "sm90/backward/pipeline.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DeferredPrepare {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kLanes = lanes_of_row(C.dim_v), kRows = 32 / kLanes;  // lanes per row, rows per access
  static constexpr int kAtOnce = 2;                                          // accesses in flight
  static constexpr int kSteps = C.tile_q / (kRows * kAtOnce), kZeroBytes = C.tile_q * C.dim_qk * 4 / kSteps;
  static_assert(kZeroBytes % (32 * 16) == 0);

  const BackwardParams& p;

  static __device__ __forceinline__ int lane() { return new_thread_id() % 32; }
  // x and y hold two elements each, because ptxas would give every single 16-bit element its own register.
  static __device__ __forceinline__ float add_products(float sum, unsigned x, unsigned y) {
    if constexpr (E == Element::bf16)
      return sum + __uint_as_float(x << 16) * __uint_as_float(y << 16) +
             __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
    else
      return sum + widen<E>(static_cast<StoredOf<E>>(x)) * widen<E>(static_cast<StoredOf<E>>(y)) +
             widen<E>(static_cast<StoredOf<E>>(x >> 16)) * widen<E>(static_cast<StoredOf<E>>(y >> 16));
  }
  static __device__ __forceinline__ float dot(const uint4& x, const uint4& y) {
    return add_products(add_products(add_products(add_products(0, x.x, y.x), x.y, y.y), x.z, y.z), x.w, y.w);
  }
  // The lane's share of one row.
  static __device__ __forceinline__ uint4 load(const unsigned char* first_row, int row_bytes, int row) {
    return *reinterpret_cast<const uint4*>(first_row + row * row_bytes + lane() % kLanes * 16);
  }
  static __device__ __forceinline__ const unsigned char* first_row(const RowsView& rows, int b, int h, int first) {
    return static_cast<const unsigned char*>(rows.data) + offset_of(rows, b, h, first) * size_of(E);
  }
  static __device__ __forceinline__ int row_bytes(const RowsView& rows) {
    return static_cast<int>(rows.row_stride) * size_of(E);
  }

  // Writes delta of every row and zeroes the tile's sums. Rows that do not exist get the delta of the last row until
  // write_lse(). Returns whether a delta of this lane is not finite.
  __device__ __forceinline__ bool write_delta_and_zeros(unsigned n, int b, int h, int first, int rows) const {
    const unsigned char *o = first_row(p.o, b, h, first), *dout = first_row(p.dout, b, h, first);
    bool not_finite = false;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      const int row = step * kRows * kAtOnce + lane() / kLanes;
      uint4 x[kAtOnce] = {}, y[kAtOnce] = {};
      if (lane() % kLanes * 8 < p.attention.dim_v) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int existing = min(row + i * kRows, rows - 1);
          x[i] = load(o, row_bytes(p.o), existing), y[i] = load(dout, row_bytes(p.dout), existing);
        }
      }
      materialize(n);  // pointers are computed again in every step instead of taking registers
      auto* zeros = reinterpret_cast<uint4*>(dq_accum<kPortable>(p, n)) + step * (kZeroBytes / 16) + lane();
#pragma unroll
      for (int i = 0; i < kZeroBytes / (32 * 16); ++i) zeros[i * 32] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float delta = sum_of_lanes<kLanes>(dot(x[i], y[i]));
        not_finite |= !is_finite(delta);
        if (lane() % kLanes == 0) row_stats<kPortable>(p, n)[delta_at(kPortable, row + i * kRows)] = delta;
      }
    }
    return not_finite;
  }
  // Writes LSE of every row and the flags.
  __device__ __forceinline__ void write_lse(unsigned n, int b, int h, int first, int rows, bool not_finite) const {
    float* stats = row_stats<kPortable>(p, n);
    const float infinity = -minus_infinity<float>();
    unsigned large_rows[2];
    static_assert(C.tile_q == 32 * 2);
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const int row = word * 32 + lane();
      const bool exists = row < rows;
      float lse = -infinity;
      if (exists) lse = static_cast<const float*>(p.lse.data)[offset_of(p.lse, b, h, first + row)];
      const bool large = is_finite(lse) && fabsf(lse) > kLargeLse;
      not_finite |= exists && !is_finite(lse);
      large_rows[word] = __ballot_sync(0xffffffffu, large);
      stats[lse_at(kPortable, row)] = lse == -infinity ? infinity : large ? lse : lse * static_cast<float>(kLog2e);
      if (lse == -infinity) stats[delta_at(kPortable, row)] = 0;
    }
    not_finite = __any_sync(0xffffffffu, not_finite);
    if (lane() != 0) return;
    stats[flag_at(kPortable)] = not_finite, stats[large_at(kPortable)] = (large_rows[0] | large_rows[1]) != 0;
    auto* words = reinterpret_cast<unsigned*>(stats + large_rows_at(kPortable));
    words[0] = large_rows[0], words[1] = large_rows[1];
  }

  __device__ __forceinline__ void prepare(unsigned n) const {
    const AttentionParams& a = p.attention;
    const unsigned tiles = static_cast<unsigned>(tiles_in(a.len_q, C.tile_q)), head = n / tiles;
    const int b = static_cast<int>(head / a.heads_q), h = static_cast<int>(head - b * a.heads_q);
    const int first = static_cast<int>(n - head * tiles) * C.tile_q, rows = min(C.tile_q, a.len_q - first);
    const bool not_finite = write_delta_and_zeros(n, b, h, first, rows);
    __syncwarp();  // write_lse() overwrites delta of rows that see no key
    write_lse(n, b, h, first, rows, not_finite);
    async_proxy_fence_global();  // TMA reads the statistics
    __syncwarp();
    if (lane() == 0) add_release(p.prepared_tiles + head, 1);
  }

  // A warp takes query tiles in the order in which tasks visit heads, and never waits. So the CTAs that are resident
  // prepare every head that a loader waits for.
  __device__ __forceinline__ void run() const {
    const AttentionParams& a = p.attention;
    const int64 heads = int64{a.batch} * a.heads_q;
    if (p.prepared_heads >= heads) return;
    const unsigned tiles = static_cast<unsigned>(heads * tiles_in(a.len_q, C.tile_q));
#pragma unroll 1
    for (;;) {
      unsigned n = 0;
      if (lane() == 0) n = atomicAdd(p.prepare_ticket, 1u);
      n = __shfl_sync(0xffffffffu, n, 0);
      if (n >= tiles) break;
      prepare(n);
    }
  }
};

}  // namespace cuflash
