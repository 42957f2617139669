// The scratch of one worker of the backward pass: a key tile, a query tile, and their products.
#pragma once

#include "cpu/tile/panel.h"

namespace cuflash::cpu {

// Where the gradient of the scores is taken: at the input of the softmax (the gradient of the bias), or at the dot
// product q * k, before softcap.
enum class GradientAt { softmax_input, dot_product };
// Which operands to load: those of all products, or only of the products that give S and dP.
enum class Loads { all, for_scores };

template <class T, class E>
struct BackwardScratch {
  Panel<T, E> panel;
  TileMask mask;  // mask of the query tile and the key tile
  TileShape shape;
  int64_t key_rows;       // shape.k rounded up to whole left panels
  int64_t dim_qk, dim_v;  // rounded up to whole steps

  // Keys as left operands: K is summed over dim for S and over keys for dQ, V over dim for dP.
  E *k_by_dim, *v_by_dim;
  RowOperand<E> k;
  // Queries as right operands: Q and dO are summed over dim for S and dP, over queries for dK and dV.
  E *q_by_dim, *dout_by_dim;
  RowOperand<E> q, dout;
  T* lse;    // [query]; +inf if the row sees no key, so that exp(s - lse) is 0
  T* delta;  // [query]

  T* dp;                // [key][lane]: dP, then dS of a panel
  E *p_left, *ds_left;  // drop(P) and dS of a query tile, as left operands summed over queries
  T *dk, *dv;           // [dim / lanes][key][lane]: accumulators of a key tile, dK before the scale
  T* ones;              // [lane]
  T* dbias;             // gradient of a tile of the bias: [query or 1][key], or sums as [panel][key][lane]

  // dbias_rows: number of queries whose sums dbias holds, if dBias is wanted.
  BackwardScratch(Arena& arena, const BackwardProblem& p, const Kernels<T, E>& kernels, TileShape shape,
                  int64_t dbias_rows);

  void load_keys(const BackwardProblem& p, const Head& head, Range keys, Loads loads = Loads::all);
  // delta_rows is [batch, heads_q, len_q].
  void load_queries(const BackwardProblem& p, const Head& head, Range queries, const Rows& delta_rows,
                    Loads loads = Loads::all);

  // Computes drop(P) in panel.s and dS in dp for a panel of the loaded query tile against the loaded keys.
  void differentiate(const BackwardProblem& p, const Head& head, Range tile, Range queries, Range keys, GradientAt at,
                     const Ahead& ahead = {});

  // Adds panel.s and dp to the left operands of dV and dK of the loaded keys. After the last panel of a query tile,
  // flush_queries multiplies them, with the rows of the tile that were added.
  void add_panel_to_keys(const BackwardProblem& p, Range tile, int64_t keys);
  void flush_queries(const BackwardProblem& p, Range queries, int64_t keys);

 private:
  void to_left(const T* w, E* left, int64_t first, int64_t tile_keys) const;
  void add_nonfinite_queries(const T* w, const RowOperand<E>& x, int64_t first, T* c);
};

extern template struct BackwardScratch<float, float>;
extern template struct BackwardScratch<double, double>;
extern template struct BackwardScratch<float, Operand16>;

}  // namespace cuflash::cpu
