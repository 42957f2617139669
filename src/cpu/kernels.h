// The hot loops of the CPU backend, one table of them per instruction set and type. isa/ implements them; everything
// around them (schedules, masks, lengths) is compiled once, for the plainest processor.
//
// A panel is `lanes` queries side by side: scores are s [key][lane], so maximum, sum and exponential of a row run lane by
// lane, nothing is summed across a vector, and s is at once the right operand of the product with V. All products are
//   c [m][lane] (+)= sum over depth of left [depth][m] * right [depth][lane]
// with left in panels of `rows`: [m / rows][depth][rows]. So both operands are read strictly in memory order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtype.h"

namespace cuflash::cpu {

enum class Into { overwrite, add };
enum class Side { left, right };

// Rows of a tensor in the caller's memory.
struct Source {
  const void* data;
  DType dtype;
  int64_t offset, row_stride;  // of the first element, in elements
  int64_t count, dim;
};

template <class T>
struct Kernels {
  int64_t rows;   // of a left panel
  int64_t lanes;  // of a right panel

  // left_stride: elements from one left panel to the next.
  void (*multiply)(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c, Into into);

  // Rows of a tensor as panels of the left or right operand, times factor. by_dim sums over dim: [row / width][dim][width],
  // zero up to a whole panel. by_row sums over rows: [dim / width][capacity][width]; rows that hold NaN or Inf are 0 there
  // and listed in `bad`, whose count is returned. Either form may be null. staging holds width rows.
  int64_t (*pack)(const Source& source, Side side, T factor, T* by_dim, T* by_row, int64_t capacity, int32_t* bad,
                  T* staging);

  // s becomes exp(s - max), m and l go on, o [dim][lane] shrinks with the maximum's growth.
  void (*softmax)(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim);

  // From scores, dP and the row's lse and delta: s becomes drop(P), dp becomes dS (times cap_slope where given).
  void (*differentiate)(int64_t keys, T* s, T* dp, const T* lse, const T* delta, const T* keep, const T* cap_slope);

  // w [key][lane] as a left operand that sums over queries: [key / rows][capacity][rows], at depth `first`.
  void (*flip)(int64_t keys, const T* w, T* left, int64_t capacity, int64_t first);

  // rows [lane][dim] = panel [dim][lane] times factor [lane]. scratch is as large as the panel.
  void (*unpack)(int64_t dim, const T* panel, const T* factor, T* scratch, T* rows);

  // -inf outside of [begin, end) of each lane.
  void (*hide)(int64_t keys, T* s, const int32_t* begin, const int32_t* end);

  // s = cap * tanh(s / cap); slope its derivative, where asked for.
  void (*softcap)(int64_t keys, T* s, T cap, T* slope);
};

// The table of the best instruction set this processor has, or of the one CUFLASH_CPU_ISA names.
template <class T>
const Kernels<T>& kernels();
template <>
const Kernels<float>& kernels();
template <>
const Kernels<double>& kernels();

const char* isa_name();                // "neon"
std::vector<const char*> isa_names();  // every one that this processor can run, the best last
void force_isa(const char* name);      // for tests: use this one; null ends it

}  // namespace cuflash::cpu
