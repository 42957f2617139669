// The hot loops of the CPU backend, one table per instruction set and type. isa/ implements them; everything around
// them (schedules, masks, lengths) is compiled once, for the baseline processor.
//
// A panel is `lanes` queries side by side. Scores are s [key][lane], so the maximum, sum and exponential of a row are
// computed lane by lane and nothing is reduced across a vector. All products are
//   c [m][lane] (+)= sum over depth of left [depth][m] * right [depth][lane]
// with left in panels of `rows`, so that both operands are read strictly in memory order.
//
// T is the type of scores, sums and softmax, E that of product operands. If they are the same, an operand is
// left [m / rows][depth][rows] or right [depth][lanes], and s is already the right operand of the product with V.
// Matrix instructions take E = Operand16, accumulate in T = float, and group the depth: the elements of `step` depths are
// interleaved in an order private to the instruction set, so depth d still starts at d * width, but only for whole
// steps. Both operands are zero-padded to the next whole step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"
#include "philox.h"

namespace cuflash::cpu {

// An element of bf16 or f16: a table is for one of them.
struct Operand16 {
  uint16_t bits;
};

enum class Into { overwrite, add };
enum class Side { left, right };

// Rows of a tensor in the caller's memory.
struct Source {
  const void* data;
  DType dtype;
  int64_t offset, row_stride;  // offset of the first element; both in elements
  int64_t count, dim;
};

struct Destination {
  void* data;
  DType dtype;
  int64_t offset, row_stride;  // offset of the first element; both in elements
};

// The random numbers for the dropout of a panel (philox.h): the key of the head, and the counter of the group of its
// first pair.
struct DropoutDraw {
  uint32_t key, counter_i, counter_j;
  DropoutRule rule;
};

// Rows of the caller's memory that will be read or written soon. A product fetches them into the second-level cache
// while it computes.
struct RowsAhead {
  const std::byte* first;
  int64_t bytes, stride, count;  // bytes of a row, bytes between rows, number of rows
};
struct Ahead {
  static constexpr int kMax = 6;
  static constexpr int64_t kLine = 64;  // bytes
  RowsAhead rows[kMax] = {};
  int count = 0;
  int64_t lines = 0;  // cache lines of all rows
};

// Sums of the weights of each lane before and after rounding; [lane] each.
template <class T>
struct RoundedSums {
  T *before, *after;
};

template <class T, class E = T>
struct Kernels {
  int64_t rows;   // rows of a left panel
  int64_t lanes;  // lanes of a right panel
  int64_t step;   // granularity of depth; 1 if T is E

  // The largest query tile of the forward pass, for heads of up to 128: what the second-level cache holds.
  int64_t tile_q;

  // Whether prefetching rows gains anything. If not, callers do not prefetch.
  bool fetches_ahead;

  // Products need what begin_products sets up on the thread, and end_products gets what it returned; use
  // ProductSession. Null if there is nothing to set up.
  uint32_t (*begin_products)();
  void (*end_products)(uint32_t before);

  // left_stride: elements between left panels.
  void (*multiply)(int64_t m, int64_t depth, const E* left, int64_t left_stride, const E* right, T* c, Into into,
                   const Ahead& ahead);

  // c = c * factor [lane] + the product.
  void (*rescale_and_multiply)(int64_t m, int64_t depth, const E* left, int64_t left_stride, const E* right, T* c,
                               const T* factor);

  // Packs rows of a tensor into panels of the left or right operand. by_dim is summed over dim:
  // [row / width][dim][width], zero-padded to a whole panel. by_row is summed over rows: [dim /
  // width][capacity][width]; rows that hold NaN or Inf are zero there and listed in `nonfinite`, and their count is
  // returned. Either form may be null. staging must hold `width` rows.
  int64_t (*pack)(const Source& source, Side side, E* by_dim, E* by_row, int64_t capacity, int32_t* nonfinite,
                  T* staging);

  // Converts w [key][lane] to a right operand that is summed over keys. Null if w already is one. Adds the sums of each
  // lane before and after rounding to `sums`, if given.
  void (*to_right)(int64_t keys, const T* w, E* right, const RoundedSums<T>* sums);

  // Converts w [key][lane] to a left operand that is summed over queries: [key / rows][capacity][rows], at depth
  // `first`.
  void (*to_left)(int64_t keys, const T* w, E* left, int64_t capacity, int64_t first);

  // Online softmax: s becomes exp(scale (s - max)), and the running max m and sum l are updated. What was summed with
  // the old max is to be multiplied by shrink [lane]; returns whether any of these factors is not 1. scale > 0.
  bool (*softmax)(int64_t keys, T* s, T scale, T* m, T* l, T* shrink);

  // softmax, drop (if keep is given) and to_right in one pass, which leaves s as it is and rescales o [dim][lane] if
  // the max grew. Null if to_right is, or if several passes are as good.
  void (*softmax_to_right)(int64_t keys, const T* s, T scale, const T* keep, T* m, T* l, T* o, int64_t dim, E* right,
                           const RoundedSums<T>& sums);

  // Computes drop(P) in s and dS in dp (times cap_slope, if given) from scores, dP, and lse and delta of each row.
  // some_hidden: some scores may be -inf. scale > 0.
  void (*differentiate)(int64_t keys, bool some_hidden, T* s, T scale, T* dp, const T* lse, const T* delta,
                        const T* keep, const T* cap_slope);

  // rows [lane][dim] = panel [dim][lane] times factor [lane], for at least the first `count` lanes.
  void (*unpack)(int64_t dim, int64_t count, const T* panel, const T* factor, T* rows);

  // unpack for exactly `count` rows, into the caller's memory. staging must hold `lanes` rows.
  void (*unpack_rows)(int64_t dim, int64_t count, const T* panel, const T* factor, const Destination& to, T* staging);

  // Sets s to -inf outside [begin, end) of each lane.
  void (*hide)(int64_t keys, T* s, const int32_t* begin, const int32_t* end);

  // s *= scale.
  void (*multiply_scores)(int64_t keys, T* s, T scale);

  // s = cap * tanh(scale s / cap), and its derivative in `slope`, if given.
  void (*softcap)(int64_t keys, T* s, T scale, T cap, T* slope);

  // s -= slope * |position + lane - key|.
  void (*alibi)(int64_t keys, T* s, T slope, int64_t position);

  // s [key][lane] = scale s + rows [lane][key]; returns whether any element of the rows is -inf. staging must hold
  // `lanes` rows.
  bool (*add_rows)(const Source& rows, T scale, T* s, T* staging);

  // Sets s to -inf where a lane does not see a key: bit n % 32 of words [n / 32][lane] is that of key n - first.
  void (*mask)(int64_t keys, T* s, const uint32_t* words, int64_t first);

  // keep [key][lane] = 0 where dropout drops, `kept` elsewhere, for whole groups of 16 keys.
  void (*draw_dropout)(int64_t keys, const DropoutDraw& draw, T kept, T* keep);

  // s *= keep.
  void (*drop)(int64_t keys, T* s, const T* keep);

  // sums += w, both [key][lane].
  void (*add)(int64_t keys, const T* w, T* sums);

  // load_row and store_row of dtype.h, vectorised.
  void (*load)(const void* data, DType type, int64_t begin, int64_t count, T* row);
  void (*store)(void* data, DType type, int64_t begin, int64_t count, const T* row);
};

// The scope of products on one thread. Not to be nested.
class ProductSession {
 public:
  template <class T, class E>
  explicit ProductSession(const Kernels<T, E>& kernels) : end_(kernels.end_products) {
    if (kernels.begin_products) before_ = kernels.begin_products();
  }
  ~ProductSession() {
    if (end_) end_(before_);
  }
  ProductSession(const ProductSession&) = delete;
  ProductSession& operator=(const ProductSession&) = delete;

 private:
  void (*end_)(uint32_t);
  uint32_t before_ = 0;
};

// The table of the best instruction set of this processor, or of the one that CUFLASH_CPU_ISA names.
template <class T, class E = T>
const Kernels<T, E>& kernels();
template <>
const Kernels<float>& kernels();
template <>
const Kernels<double>& kernels();
// Whether matrix instructions take bf16 or f16; if not, the type is widened to f32. Call this only when it is about to be
// multiplied: if the kernels need AMX tile registers, it requests them from Linux (tile_permission.h).
bool has_matrix_kernels(DType dtype);
const Kernels<float, Operand16>& matrix_kernels(DType dtype);
std::string refusal_of_matrix_kernels(DType dtype);  // "", or why the table of the set in use may not be used

const char* isa_name();  // "neon_bf16", the set in use
template <class T, class E = T>
const char* isa_name();  // "neon", the set that provides the table of these types
template <>
const char* isa_name<float>();
template <>
const char* isa_name<double>();
const char* matrix_isa_name(DType dtype);  // of the set that provides matrix_kernels
std::vector<const char*> isa_names();      // the sets that this processor can run, best last
void force_isa(const char* name);          // for tests: use this set; null restores the default

}  // namespace cuflash::cpu
