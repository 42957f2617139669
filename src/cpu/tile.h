// One tile of the score matrix: packed operands, scores with every option of the spec, and who sees whom.
//
// Scores are kept transposed, s[key][query] with queries in vector lanes: maximum, sum and exponential of a row then run
// lane by lane, and s is at once the left operand of the products that sum over keys.
#pragma once

#include <cstdint>

#include "cpu/arena.h"
#include "cpu/gemm.h"
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

// Rows of a tensor in the type that computes, by row [row][dim] and/or transposed [dim][row]; absent forms are null. The
// tail of a tile is zero.
template <class T>
struct Operand {
  T* rows = nullptr;
  T* columns = nullptr;
  int64_t row_stride = 0, column_stride = 0;
  bool finite = true;

  enum Form { kRows = 1, kColumns = 2 };
  Operand() = default;
  Operand(Arena& arena, int64_t tile, int64_t dim, int forms);

  // Loads rows [range.begin, range.end) of (b, h), multiplied by factor; `first` is the tensor row of the sequence's row 0.
  void load(const ConstRows& from, int64_t b, int64_t h, int64_t first, Range range, int64_t dim, T factor, T* staging);
};

// The pairs of the tile that see each other. Query q sees keys [begin[q], end[q]) of the tile that the mask tensor allows.
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
struct Tile {
  TileShape shape{};
  T* s = nullptr;        // [key][query], -inf where the pair does not see each other
  T* cap_slope = nullptr;  // [key][query], d softcap(s) / ds; null without softcap
  T* keep = nullptr;     // [key][query], 0 or 1 / (1 - p); null without dropout
  T* staging = nullptr;  // one row of anything
  Visibility visible;

  // Of the tile at hand.
  Range queries{}, keys{};
  int64_t padded_q = 0, padded_k = 0;  // extents rounded up to whole blocks

  Tile() = default;
  Tile(Arena& arena, const Problem& problem, TileShape shape);

  // s = scores of queries x keys. q is packed with the scale in it.
  void compute_scores(const Problem& p, const Head& head, Range queries, Range keys, const Operand<T>& q,
                      const Operand<T>& k);

 private:
  void apply_softcap(T softcap);
  void apply_alibi(const Problem& p, const Head& head);
  void apply_bias(const Problem& p, const Head& head);
  void find_visible(const Problem& p, const Head& head);
  void hide_invisible();
  void draw_dropout(const Problem& p, const Head& head);
};

// c [query][dim] += w [key][query]^T * x [key][dim]. Where x holds NaN or Inf only pairs that see each other are summed: a
// weight of 0 would not keep them out.
template <class T>
void accumulate_over_keys(const Tile<T>& tile, const T* w, const Operand<T>& x, int64_t dim, T* c, int64_t c_stride);

// c [key][dim] += w [query][key]^T * x [query][dim], likewise.
template <class T>
void accumulate_over_queries(const Tile<T>& tile, const T* w, const Operand<T>& x, int64_t dim, T* c, int64_t c_stride);

extern template struct Operand<float>;
extern template struct Operand<double>;
extern template struct Tile<float>;
extern template struct Tile<double>;

}  // namespace cuflash::cpu
