// Random arguments of the C ABI: valid ones, valid ones with a few fields changed, and random bytes. The addresses of tensors
// are invalid, since no query may dereference them; lengths, tables and indices are read, and have real memory.
#pragma once

#include <cuflash/cuflash_cache.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "dtype.h"

namespace cuflash::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  int64_t below(int64_t count) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(count)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

// A struct in memory of exactly its size or, once grown, of as many bytes as its struct_size may say.
template <class Struct>
class Padded {
 public:
  Padded() : bytes_(sizeof(Struct)) {}
  void grow() { bytes_.resize(kBytes); }
  Struct& get() { return *reinterpret_cast<Struct*>(bytes_.data()); }
  const Struct& get() const { return *reinterpret_cast<const Struct*>(bytes_.data()); }
  std::byte& byte(int64_t n) { return bytes_[static_cast<size_t>(n)]; }

  static constexpr int64_t kBytes = 1 << 16;

 private:
  std::vector<std::byte> bytes_;
};

enum class CallKind { forward, backward, cache, merge };
inline constexpr CallKind kCallKinds[] = {CallKind::forward, CallKind::backward, CallKind::cache, CallKind::merge};

struct RandomStructs {
  CallKind kind;
  Padded<cuflash_attention> attention;
  Padded<cuflash_forward_outputs> outputs;
  Padded<cuflash_backward_tensors> gradients;
  Padded<cuflash_cache_tensors> cache;
  Padded<cuflash_merge_tensors> merge;
  Padded<cuflash_execution> execution;
  bool no_execution = false;  // NULL is passed

  RandomStructs(CallKind kind, uint64_t seed);
  // Clears the address of lengths, tables and indices that claim more than their memory, so that the rest can safely be
  // described as host memory.
  void make_readable();

 private:
  // Extents of a legal problem, unless too many of them are large.
  struct Sizes {
    int64_t batch, heads_k, heads_q, len_q, len_k, dim_qk, dim_v;
    int64_t max_q, max_k;  // of packed sequences
    DType dtype, out;
  };
  using Shape = std::vector<int64_t>;
  enum class Order { contiguous, heads_inside, repeated };

  Sizes draw_sizes(bool few_sequences);
  int64_t small();
  int64_t extent();
  double real();
  const void* address();
  template <class TensorStruct>
  void set(TensorStruct& t, DType dtype, const Shape& shape, Order order);
  template <class TensorStruct>
  void set_optional(TensorStruct& t, int64_t one_in, DType dtype, const Shape& shape, Order order);
  Order input_order();
  Order output_order();
  void set_integers(cuflash_tensor& t, const Shape& shape, const std::vector<int32_t>& values);
  std::vector<int32_t> lengths(int64_t count, int64_t most);
  std::vector<int32_t> ends(int64_t count, int64_t total);

  Shape rows_shape(int64_t heads, int64_t length, int64_t dim) const;
  Shape lse_shape() const;
  void fill_queries();
  void fill_keys();
  void fill_scores();
  void fill_forward();
  void fill_backward();
  void fill_cache();
  void fill_merge();
  void fill_execution();

  template <class TensorStruct>
  void change(TensorStruct& t);
  template <class Struct>
  void change_size(Padded<Struct>& s);
  void change_numbers();
  void change_something();
  std::vector<cuflash_tensor*> inputs();
  std::vector<cuflash_mutable_tensor*> written();
  std::vector<cuflash_tensor*> integers();

  Random random_;
  Sizes s_{};
  bool packed_ = false;
  std::vector<std::vector<int32_t>> memory_;
};

}  // namespace cuflash::test
