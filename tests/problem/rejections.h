// Shared by the rejection tests: a valid call of the C ABI with every option on and every optional tensor given, rules
// that break one thing of it, and the check that such a call is refused as the contract says.
#pragma once

#include <cuflash/flash_attention.h>

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "check/cases/choices.h"
#include "dtype.h"

namespace cuflash::rejections {

using check::Choices;

enum class Direction { forward, backward };
enum class Mode { dense, padded, packed };

// Every extent is at least 2, so that a rule about an extent, a stride or a length can be broken in each dimension.
struct Sizes {
  Direction direction = Direction::forward;
  Mode mode = Mode::dense;
  DType dtype = DType::f32, output_dtype = DType::f32;
  int64_t batch = 2, heads_k = 2, group = 2, len_q = 3, len_k = 4, dim = 5, dim_v = 6;

  int64_t heads_q() const { return heads_k * group; }
};
const char* name_of(Direction direction);
Sizes draw_sizes(Choices& choices);
std::string describe(const Sizes& sizes);

// One tensor argument; the same for inputs and outputs.
struct Slot {
  std::string name;
  bool is_output;
  const void* data;
  std::function<void(const void*)> set_data;
  int32_t* dtype;
  int32_t* rank;
  int64_t* shape;
  int64_t* stride;

  DType type() const { return static_cast<DType>(*dtype); }
  const char* type_name() const { return cuflash::name_of(type()); }
  int last() const { return *rank - 1; }
  void remove() const { set_data(nullptr), *rank = 0; }
};

// Nothing if the tensor is absent.
template <class TensorStruct>
void add_slot(std::vector<Slot>& slots, const char* name, TensorStruct& t) {
  if (t.rank == 0) return;
  constexpr bool is_output = std::is_same_v<TensorStruct, cuflash_mutable_tensor>;
  const auto set_data = [&t](const void* data) { t.data = const_cast<void*>(data); };
  slots.push_back({name, is_output, t.data, set_data, &t.dtype, &t.rank, t.shape, t.stride});
}

class Call {
 public:
  explicit Call(const Sizes& sizes);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  cuflash_status run() const;
  cuflash_status workspace_size(size_t* bytes) const;
  cuflash_status explain(char* text, size_t capacity, size_t* needed) const;
  bool outputs_untouched() const;

  bool packed() const { return sizes.mode == Mode::packed; }
  bool padded() const { return sizes.mode == Mode::padded; }
  bool backward() const { return sizes.direction == Direction::backward; }

  std::vector<Slot> slots();  // those this call has: of forward or of backward, and of its mode
  Slot slot(const std::string& name);
  int32_t* lengths(const std::string& name) { return static_cast<int32_t*>(const_cast<void*>(slot(name).data)); }

  // Memory for a rule, 64-byte aligned and zero; lives as long as the call.
  std::byte* scratch(size_t bytes);

  const Sizes sizes;
  cuflash_attention attention;
  cuflash_forward_outputs outputs;
  cuflash_backward_tensors tensors;
  cuflash_execution execution;
  // The pointers that are passed; a rule may redirect them.
  const cuflash_attention* attention_argument = &attention;
  const cuflash_forward_outputs* outputs_argument = &outputs;
  const cuflash_backward_tensors* tensors_argument = &tensors;
  const cuflash_execution* execution_argument = &execution;

 private:
  using Shape = std::vector<int64_t>;
  using Memory = std::list<std::vector<unsigned char>>;

  template <class TensorStruct>
  static void bind(TensorStruct& t, DType dtype, const Shape& shape, Memory& memory, unsigned char fill);
  void input(cuflash_tensor& t, DType dtype, const Shape& shape, unsigned char fill = 0);
  void output(cuflash_mutable_tensor& t, DType dtype, const Shape& shape);
  void fill_inputs();
  void fill_options();
  void fill_lengths();
  void fill_outputs();

  int64_t rows(int64_t length) const;
  Shape shape(int64_t heads, int64_t length, int64_t dim) const;
  Shape lse_shape() const;

  Memory inputs_memory_, outputs_memory_, scratch_;
};

// The expected answer to a broken call: this status, and a sentence that starts with the argument's name and contains each of
// `values` as a word.
struct Refusal {
  std::string argument;
  std::vector<std::string> values{};
  cuflash_status status = CUFLASH_INVALID_ARGUMENT;
};

// "" if a call was answered like that and touched no output, otherwise what is wrong.
std::string why_not_refused(bool untouched, const Refusal& expected, const char* what, cuflash_status status);

// Breaks one thing of a valid call; returns nothing if the call has no such thing.
struct Rule {
  std::string name;
  std::function<std::optional<Refusal>(Call& call, Choices& choices)> apply;
};

template <class Number>
std::string text(Number number) {
  return std::to_string(number);
}

// Applies the rule to a call of these sizes. Nothing if it does not apply, "" if the call was refused as expected, otherwise
// what went wrong.
std::optional<std::string> failure_of(const Rule& rule, const Sizes& sizes, Choices& choices);

// Each rule in both directions, all modes and types: every rule must have applied somewhere.
void expect_all_refused(const std::vector<Rule>& rules);

// A random rule on a random call; "" or what went wrong.
std::string random_refusal(const std::vector<Rule>& rules, Choices& choices);

}  // namespace cuflash::rejections
