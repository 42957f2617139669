// One attention call as JAX makes it: dense buffers with names, and options with names.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "options.h"

namespace cuflash::python::xla {

enum class Direction { forward, backward };
enum class Layout { bhsd, bshd, thd };

// A row-major buffer. vmap adds leading dimensions to those of the call, of size 1 if every call shares the buffer.
struct Operand {
  std::string_view name;
  DType dtype;
  void* data;
  std::vector<int64_t> shape;
};

// The type of an attribute: f64 or s64, which holds the bits of an unsigned number.
template <class Type>
using AttributeType =
    std::conditional_t<std::is_same_v<Type, double> || std::is_same_v<Type, std::optional<double>>, double, int64_t>;

struct Options {
#define CUFLASH_MEMBER(type, name, value) AttributeType<type> name = value;
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_MEMBER, CUFLASH_MEMBER)
#undef CUFLASH_MEMBER
  int64_t has_scale = 0;
  int64_t deterministic = 0;
  int64_t num_threads = 0;

  // Points to the option of this name: one of the two, or neither if the name is unknown.
  struct Field {
    double* real = nullptr;
    int64_t* integer = nullptr;
  };
  Field find(std::string_view name);
};

struct Call {
  Direction direction;
  Layout layout;
  Options options;
  std::vector<Operand> operands;  // arguments and results
};

Layout layout_of(std::string_view name);

// The structs of one of vmap's calls, with pointers to its slices of the buffers.
struct Slice {
  Attention attention;
  ForwardOutputs outputs;
  BackwardTensors gradients;
};

int64_t slices(const Call& call);              // how many calls vmap made of this one
Slice slice(const Call& call, int64_t index);  // index in [0, slices)

void run(Direction direction, const Slice& slice, const Execution& execution);
size_t workspace_size(Direction direction, const Slice& slice, const Execution& execution);

}  // namespace cuflash::python::xla
