// A panel of queries against a key tile: scores with every option of the spec, and which pairs are visible.
#pragma once

#include <cstdint>
#include <numeric>

#include "cpu/isa/kernels.h"
#include "cpu/plan/arena.h"
#include "cpu/plan/plan.h"
#include "cpu/tile/tile_mask.h"
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

// Rows of a tensor as an operand that is summed over rows. A weight of 0 does not keep NaN or Inf out of a sum, so rows
// that hold one are left out of the panels and added pair by pair, only where query and key see each other.
template <class E>
struct RowOperand {
  E* panels = nullptr;  // [dim / width][capacity][width]
  int64_t capacity = 0;
  int32_t* nonfinite = nullptr;
  int64_t nonfinite_count = 0;
  Source source{};

  RowOperand() = default;
  RowOperand(Arena& arena, int64_t capacity, int64_t dim, int64_t width)
      : panels(arena.take<E>(capacity * round_up(dim, width))),
        capacity(capacity),
        nonfinite(arena.take<int32_t>(capacity)) {}

  // Also packs by dim if by_dim is not null.
  template <class T>
  void load(const Kernels<T, E>& kernels, const Source& from, Side side, E* by_dim, T* staging) {
    source = from;
    nonfinite_count = kernels.pack(from, side, by_dim, panels, capacity, nonfinite, staging);
  }
  template <class T>
  void read(int64_t row, T* to) const {
    load_row(source.data, source.dtype, source.offset + row * source.row_stride, source.dim, to);
  }
};

// The visible pairs: lane q sees the keys [begin[q], end[q]) of the tile that the mask tensor allows.
struct Visibility {
  int32_t* begin = nullptr;
  int32_t* end = nullptr;
  const uint32_t* mask = nullptr;  // PanelMask::words
  int64_t first_key = 0, lanes = 0;
  bool complete = false;    // every query sees every key
  bool bias_hides = false;  // a bias of -inf hides some pair

  bool sees(int64_t q, int64_t k) const { return k >= begin[q] && k < end[q] && (!mask || shows(q, first_key + k)); }

 private:
  bool shows(int64_t q, int64_t n) const { return (mask[n / 32 * lanes + q] >> n % 32 & 1) != 0; }
};

template <class T, class E>
struct Panel {
  const Kernels<T, E>& kernels;
  T* s = nullptr;          // [key][lane], -inf where the pair is hidden
  T scale = 1;             // factor still to be applied to s
  T* cap_slope = nullptr;  // [key][lane], d softcap(s) / ds; null if not needed
  T* keep = nullptr;       // [key][lane], 0 or 1 / (1 - p); null without dropout
  T* staging = nullptr;    // holds rows that are being converted
  Visibility visible;

  // The current panel: its queries, the keys of the tile that at least one of them may see, and the offset of those
  // keys in the tile.
  Range queries{}, keys{};
  int64_t first_key = 0;

  Panel(Arena& arena, const Problem& problem, const Kernels<T, E>& kernels, int64_t tile_k);

  // Products start and end at whole left panels, steps and dropout groups of keys.
  int64_t key_unit() const { return std::lcm(16, std::lcm(kernels.rows, kernels.step)); }

  // Computes s such that scale * s are the scores of the queries against the keys of the tile, which is packed in
  // k_left. mask: visible pairs of these queries in the tile.
  void compute_scores(const Problem& p, const Head& head, Range queries, Range tile, const PanelMask& mask,
                      const E* q_right, const E* k_left, Ahead ahead = {});

  // c [dim][lane] += sum over keys of x [key][dim] w [key][lane].
  void add_keys(const T* w, const RowOperand<E>& x, T* c) { add_weighted(w, x, c, Into::add, nullptr, nullptr); }

  // One step of the online softmax over s: updates m and l, and o [dim][lane], of which `o_rows` rows have sums.
  void add_softmax(const RowOperand<E>& v, T* m, T* l, T* o, int64_t o_rows, Into into, const RoundedSums<T>& sums);

 private:
  ProductSession session;
  E* right = nullptr;   // weights as a right operand, if they need conversion
  T* shrink = nullptr;  // [lane]

  // First multiplies c by `factor` [lane], if given. sums: see Kernels::to_right.
  void add_weighted(const T* w, const RowOperand<E>& x, T* c, Into into, const T* factor, const RoundedSums<T>* sums);
  template <class Weight>
  void add_operand(const E* weights, const RowOperand<E>& x, T* c, Into into, const T* factor, Weight weight_of);
  T weight_of(T score, T top) const;
  void apply_scale(const Problem& p);
  Source score_rows(const ConstRows& from, const Head& head) const;
  void find_visible(const Problem& p, const Head& head, const PanelMask& mask);
  void draw_dropout(const Problem& p, const Head& head);
};

extern template struct Panel<float, float>;
extern template struct Panel<double, double>;
extern template struct Panel<float, Operand16>;

}  // namespace cuflash::cpu
