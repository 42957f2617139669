// A panel of queries against a tile of keys: scores with every option of the spec, and who sees whom.
#pragma once

#include <cstdint>

#include "cpu/arena.h"
#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash::cpu {

// A query head of a batch entry.
struct Head {
  int64_t b, h, hk;
  Sequence seq;
};
inline Head head_of(const Problem& p, int64_t b, int64_t h) { return {b, h, h / p.group(), sequence_of(p, b)}; }

inline Source source_of(const ConstRows& from, int64_t b, int64_t h, int64_t first, Range rows, int64_t dim) {
  return {from.data, from.dtype, from.at(b, h, first + rows.begin), from.row_stride, rows.size(), dim};
}

// Rows of a tensor as an operand that is summed over rows. A weight of 0 does not keep NaN or Inf out of a sum, so rows that
// hold one are left out of the panels and added pair by pair, where query and key see each other.
template <class T>
struct RowOperand {
  T* panels = nullptr;  // [dim / width][capacity][width]
  int64_t capacity = 0;
  int32_t* bad = nullptr;
  int64_t bad_count = 0;
  Source source{};
  T factor = 1;

  RowOperand() = default;
  RowOperand(Arena& arena, int64_t capacity, int64_t dim, int64_t width)
      : panels(arena.take<T>(capacity * round_up(dim, width))),
        capacity(capacity),
        bad(arena.take<int32_t>(capacity)) {}

  // Packs by dim on the way, where by_dim is not null.
  void load(const Kernels<T>& kernels, const Source& from, Side side, T times, T* by_dim, T* staging) {
    source = from, factor = times;
    bad_count = kernels.pack(from, side, times, by_dim, panels, capacity, bad, staging);
  }
  // A row as it was loaded.
  void read(int64_t row, T* to) const {
    load_row(source.data, source.dtype, source.offset + row * source.row_stride, source.dim, to);
    for (int64_t d = 0; d < source.dim; ++d) to[d] *= factor;
  }
};

// The pairs that see each other. Lane q sees keys [begin[q], end[q]) of the tile that the mask tensor allows.
struct Visibility {
  int32_t* begin = nullptr;
  int32_t* end = nullptr;
  const uint8_t* mask = nullptr;
  int64_t mask_stride = 0;
  bool complete = false;  // every query sees every key

  bool sees(int64_t q, int64_t k) const {
    return k >= begin[q] && k < end[q] && (!mask || mask[q * mask_stride + k] != 0);
  }
};

template <class T>
struct Panel {
  const Kernels<T>& kernels;
  T* s = nullptr;          // [key][lane], -inf where the pair does not see each other
  T* cap_slope = nullptr;  // [key][lane], d softcap(s) / ds; null without softcap
  T* keep = nullptr;       // [key][lane], 0 or 1 / (1 - p); null without dropout
  T* staging = nullptr;    // rows on their way
  Visibility visible;

  // Of the panel at hand: its queries, the keys of the tile that one of them may see, and where those start in the tile.
  Range queries{}, keys{};
  int64_t first_key = 0;

  Panel(Arena& arena, const Problem& problem, const Kernels<T>& kernels, int64_t tile_k);

  // s = scores of queries x keys of the tile, which is packed in k_left. q holds the scale already.
  void compute_scores(const Problem& p, const Head& head, Range queries, Range tile, const T* q_right, const T* k_left);

  // c [dim][lane] += sum over keys of x [key][dim] w [key][lane].
  void add_keys(const T* w, const RowOperand<T>& x, T* c);

 private:
  void apply_alibi(const Problem& p, const Head& head);
  void apply_bias(const Problem& p, const Head& head);
  void find_visible(const Problem& p, const Head& head);
  void apply_mask();
  void draw_dropout(const Problem& p, const Head& head);
};

extern template struct Panel<float>;
extern template struct Panel<double>;

}  // namespace cuflash::cpu
