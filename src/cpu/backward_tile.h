// What the passes of the backward share: one tile's probabilities and the gradient of its scores.
#pragma once

#include "cpu/tile.h"

namespace cuflash::cpu {

// Where a gradient of the scores is taken: at the scores that enter the softmax (that is bias's gradient), or at q * k,
// before softcap.
enum class At { softmax, product };

template <class T>
struct BackwardTile {
  Operand<T> q, k, v, dout;
  Tile<T> tile;           // tile.s holds drop(P) after differentiate()
  T* ds = nullptr;        // [key][query]
  T* flipped = nullptr;   // [query][key], for sums over queries
  T* lse = nullptr;       // [query], +inf where the row saw nothing: exp(s - lse) is then 0
  T* delta = nullptr;     // [query]

  BackwardTile(Arena& arena, const Problem& p, TileShape shape);

  // delta_rows is [batch, heads_q, len_q] as delta_pass left it.
  void load_queries(const BackwardProblem& p, const Head& head, Range queries, const Rows& delta_rows);
  void load_keys(const BackwardProblem& p, const Head& head, Range keys);

  // P and dS of queries x keys, which have been loaded.
  void differentiate(const BackwardProblem& p, const Head& head, Range queries, Range keys, At at);

  // flipped = w transposed.
  const T* flip(const T* w);
};

extern template struct BackwardTile<float>;
extern template struct BackwardTile<double>;

}  // namespace cuflash::cpu
