// One attention call as JAX makes it: dense buffers with names, and options with names.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace cuflash::python::xla {

enum class Direction { forward, backward };
enum class Layout { bhsd, bshd, thd };

// A row-major buffer. vmap puts dimensions in front of those that the call knows: 1 where every call shares the buffer.
struct Operand {
  std::string_view name;
  DType dtype;
  void* data;
  std::vector<int64_t> shape;
};

struct Options {
  double scale = 0;
  double softcap = 0;
  int64_t has_scale = 0;
  int64_t causal = 0;
  int64_t top_left = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  int64_t deterministic = 0;
  double dropout_p = 0;
  int64_t dropout_seed = 0;  // the bits of an unsigned number, as is the offset
  int64_t dropout_offset = 0;
  int64_t num_threads = 0;

  // Where the option of this name is; one of the two is null, both for a name that is unknown.
  struct Place {
    double* real;
    int64_t* integer;
  };
  Place place(std::string_view name);
};

struct Call {
  Direction direction;
  Layout layout;
  Options options;
  std::vector<Operand> operands;  // those that are read and those that are written
};

Layout layout_of(std::string_view name);

// Called with what is queried or run: the structs of one call, pointers already moved to its slice of vmap.
struct Slice {
  Attention attention;
  ForwardOutputs outputs;
  BackwardTensors gradients;
};

int64_t slices(const Call& call);              // how many calls vmap has made of this one
Slice slice(const Call& call, int64_t index);  // index in [0, slices)

void run(Direction direction, const Slice& slice, const Execution& execution);
size_t workspace_size(Direction direction, const Slice& slice, const Execution& execution);

}  // namespace cuflash::python::xla
