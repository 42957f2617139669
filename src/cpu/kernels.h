// The hot loops of the CPU backend, one table of them per instruction set and type. isa/ implements them; everything
// around them (schedules, masks, lengths) is compiled once, for the plainest processor.
//
// A panel is `lanes` queries side by side: scores are s [key][lane], so maximum, sum and exponential of a row run lane by
// lane, and nothing is summed across a vector. All products are
//   c [m][lane] (+)= sum over depth of left [depth][m] * right [depth][lane]
// with left in panels of `rows`, so that both operands are read strictly in memory order.
//
// T is the type of scores, sums and softmax, E that of the operands of products. Where they are the same, an operand is
// left [m / rows][depth][rows] or right [depth][lanes], and s is at once the right operand of the product with V. Matrix
// instructions take E = Bf16, sum in T = float, and want the depth in groups: the elements of `step` depths stand
// together in an order of their own, so depth d starts at the same d * width, but only for whole steps. Both operands
// are 0 up to the next whole step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"

namespace cuflash::cpu {

struct Bf16 {
  uint16_t bits;
};

enum class Into { overwrite, add };
enum class Side { left, right };

// Rows of a tensor in the caller's memory.
struct Source {
  const void* data;
  DType dtype;
  int64_t offset, row_stride;  // of the first element, in elements
  int64_t count, dim;
};

// Which numbers a panel draws for dropout (philox.h): the head's stream, and the groups its first pair belongs to.
struct DropoutDraw {
  uint32_t stream[4];
  uint32_t group_i, group_j, threshold;
};

// [lane] each.
template <class T>
struct RoundedSums {
  T *before, *after;
};

template <class T, class E = T>
struct Kernels {
  int64_t rows;   // of a left panel
  int64_t lanes;  // of a right panel
  int64_t step;   // of depth: 1 where T is E

  // left_stride: elements from one left panel to the next.
  void (*multiply)(int64_t m, int64_t depth, const E* left, int64_t left_stride, const E* right, T* c, Into into);

  // Rows of a tensor as panels of the left or right operand. by_dim sums over dim: [row / width][dim][width], zero up to
  // a whole panel. by_row sums over rows: [dim / width][capacity][width]; rows that hold NaN or Inf are 0 there and listed
  // in `bad`, whose count is returned. Either form may be null. staging holds width rows.
  int64_t (*pack)(const Source& source, Side side, E* by_dim, E* by_row, int64_t capacity, int32_t* nonfinite,
                  T* staging);

  // w [key][lane] as a right operand that sums over keys. Null where it is one already. The sums of a lane before and
  // after rounding are added to sums, where given.
  void (*to_right)(int64_t keys, const T* w, E* right, const RoundedSums<T>* sums);

  // w [key][lane] as a left operand that sums over queries: [key / rows][capacity][rows], at depth `first`.
  void (*to_left)(int64_t keys, const T* w, E* left, int64_t capacity, int64_t first);

  // s becomes exp(scale (s - max)), m = max and l go on, o [dim][lane] shrinks with the maximum's growth. scale > 0.
  void (*softmax)(int64_t keys, T* s, T scale, T* m, T* l, T* o, int64_t dim);

  // From scores, dP and the row's lse and delta: s becomes drop(P), dp becomes dS (times cap_slope where given). scale > 0.
  // some_hidden: there may be scores of -inf.
  void (*differentiate)(int64_t keys, bool some_hidden, T* s, T scale, T* dp, const T* lse, const T* delta,
                        const T* keep, const T* cap_slope);

  // rows [lane][dim] = panel [dim][lane] times factor [lane], of the first `count` lanes at least.
  void (*unpack)(int64_t dim, int64_t count, const T* panel, const T* factor, T* rows);

  // -inf outside of [begin, end) of each lane.
  void (*hide)(int64_t keys, T* s, const int32_t* begin, const int32_t* end);

  // s *= scale.
  void (*multiply_scores)(int64_t keys, T* s, T scale);

  // s = cap * tanh(scale s / cap); slope its derivative, where asked for.
  void (*softcap)(int64_t keys, T* s, T scale, T cap, T* slope);

  // s -= slope * |position + lane - key|.
  void (*alibi)(int64_t keys, T* s, T slope, int64_t position);

  // s [key][lane] += rows [lane][key]. staging holds `lanes` rows, also for mask.
  void (*add_rows)(const Source& rows, T* s, T* staging);

  // -inf where rows [lane][key] is 0.
  void (*mask)(const Source& rows, T* s, T* staging);

  // keep [key][lane]: 0 where dropout drops, `kept` elsewhere; for whole groups of 16 keys.
  void (*draw_dropout)(int64_t keys, const DropoutDraw& draw, T kept, T* keep);

  // s *= keep.
  void (*drop)(int64_t keys, T* s, const T* keep);

  // rows [lane][key] += w [key][lane], for the first `count` lanes; rows lie `stride` apart.
  void (*add_to_rows)(int64_t keys, const T* w, int64_t count, T* rows, int64_t stride);

  // load_row and store_row of dtype.h.
  void (*load)(const void* data, DType type, int64_t begin, int64_t count, T* row);
  void (*store)(void* data, DType type, int64_t begin, int64_t count, const T* row);
};

// The table of the best instruction set this processor has, or of the one CUFLASH_CPU_ISA names.
template <class T, class E = T>
const Kernels<T, E>& kernels();
template <>
const Kernels<float>& kernels();
template <>
const Kernels<double>& kernels();
template <>
const Kernels<float, Bf16>& kernels();
// Whether there is a table of the last kind; otherwise bf16 is widened to f32. To be asked where bf16 is about to be
// multiplied, and nowhere else: where tile registers are needed, this asks Linux for them (tile_permission.h).
bool has_bf16_kernels();
std::string refusal_of_bf16_kernels();  // "", or why the table that the set in use has may not be used

const char* isa_name();  // "neon_bf16", the set in use
template <class T, class E = T>
const char* isa_name();  // "neon", the set that the table of these types is of
template <>
const char* isa_name<float>();
template <>
const char* isa_name<double>();
template <>
const char* isa_name<float, Bf16>();
std::vector<const char*> isa_names();  // every one that this processor can run, the best last
void force_isa(const char* name);      // for tests: use this one; null ends it

}  // namespace cuflash::cpu
