// Shared by the regression tests: inputs of a problem, a forward and a backward call on guarded memory, and the comparison
// of everything the calls wrote with the oracle.
#pragma once

#include <cuflash/flash_attention.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check/memory/guarded.h"
#include "dtype.h"
#include "tests/shared/device.h"

// Defined where the program is linked against a library that was compiled with a sanitizer; see tests/sanitized.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
}

namespace cuflash::test {

// Sanitizers use memory for themselves and change what a process uses.
inline const bool kThreadSanitized = __tsan_init != nullptr;
inline const bool kAddressSanitized = __asan_init != nullptr;
inline const bool kSanitized = kThreadSanitized || kAddressSanitized;

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr DType kFloatTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

// Guarded memory for a layout (a view without data). An element that a call forgets to write shows as NaN.
struct Buffer : check::GuardedTensor {
  Buffer() = default;
  explicit Buffer(const Tensor& layout, int64_t offset = 0, const char* name = "buffer")
      : GuardedTensor(name, layout.dtype, {layout.shape.begin(), layout.shape.begin() + layout.rank},
                      {layout.stride.begin(), layout.stride.begin() + layout.rank}, offset) {}
};

// The part [begin, begin + count) of one dimension of a view.
template <class Pointer>
BasicTensor<Pointer> narrow(BasicTensor<Pointer> t, int dim, int64_t begin, int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char, const char>;
  const auto d = static_cast<size_t>(dim);
  t.data = static_cast<Byte*>(t.data) + begin * t.stride[d] * size_of(t.dtype);
  t.shape[d] = count;
  return t;
}

std::vector<double> values_of(const ConstTensor& t);  // in logical order
void fill(const Tensor& t, double value);
void fill_normal(const Tensor& t, uint64_t seed, double deviation = 1);

bool all_equal(const std::vector<double>& values, double expected);
std::vector<double> part(const std::vector<double>& values, int64_t begin, int64_t count);

struct Sizes {
  int64_t batch = 1, heads_q = 1, heads_k = 1, len_q = 1, len_k = 1, dim = 8, dim_v = 8;
  DType dtype = DType::f32;
};

// N(0, 1) inputs of one problem. The tests set further options in `attention`, which points into the buffers.
struct Inputs {
  Buffer q, k, v, dout;
  std::vector<int32_t> lengths_q, lengths_k;
  Attention attention;

  Inputs(const Tensor& q_layout, const Tensor& k_layout, const Tensor& v_layout, const Tensor& o_layout);
};

Inputs dense(const Sizes& sizes);
// Inputs of which only the first used rows of each sequence exist; the rows after them hold `beyond`.
Inputs padded(const Sizes& sizes, const std::vector<int32_t>& used_q, const std::vector<int32_t>& used_k,
              double beyond = kNan);
// len_q and len_k are the rows of the buffers; those after the last sequence are NaN.
Inputs packed(const Sizes& sizes, const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k);

struct Call {
  ConstTensor dlse{};
  Execution execution{};
  int64_t offset = 0;  // where every output begins, in elements after a 64-byte boundary
};

// Everything a forward and a backward call wrote, in logical order, widened.
struct Results {
  std::vector<double> o, lse, dq, dk, dv, dbias, dsink;
};

bool same_bits(const std::vector<double>& a, const std::vector<double>& b);
bool same_bits(const Results& a, const Results& b);

// Outputs have the strides of their inputs (contiguous where those repeat). Fails the test if a byte outside of them, or a
// packed row after the last sequence, was written.
Results run(const Attention& attention, const ConstTensor& dout, const Call& call = {});
inline Results run(const Inputs& in, const Call& call = {}) { return run(in.attention, in.dout.view(), call); }

// Compares what the calls wrote with the oracle.
void expect_equals_oracle(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                          const Results& r);

// Both of the above. The results are returned for further checks.
Results expect_matches_oracle(const Attention& attention, const ConstTensor& dout, const Call& call = {});
inline Results expect_matches_oracle(const Inputs& in, const Call& call = {}) {
  return expect_matches_oracle(in.attention, in.dout.view(), call);
}

// Another layout of a problem gives the same bits on the CPU. CUDA may have another kernel for it, with sums in another
// order, which is compared with the oracle.
void expect_same_in_another_layout(const Inputs& in, const Results& expected, const Call& call = {});

// The call is refused because of an argument, in a sentence that names it, and its output stays untouched.
void expect_refused(const Attention& attention, const std::string& argument,
                    cuflash_status status = CUFLASH_INVALID_ARGUMENT);

}  // namespace cuflash::test
