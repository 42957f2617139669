// Which kernel a problem of these sizes would get. No tensor is allocated: explaining never reads one.
#include <iostream>

#include "backend/backend.h"
#include "check/device.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/text.h"
#include "dtype.h"
#include "problem/describe.h"

namespace cuflash::cli {

namespace {

// Addresses for tensors that nobody will touch: non-null, aligned and apart from each other, as the library demands.
class Placeholders {
 public:
  template <class... Extent>
  void* next(DType type, Extent... extents) {
    constexpr uintptr_t kGap = 4096;
    const uintptr_t begin = end_;
    uintptr_t bytes = static_cast<uintptr_t>(size_of(type));
    bool overflows = ((extents < 0 || __builtin_mul_overflow(bytes, static_cast<uintptr_t>(extents), &bytes)) || ...);
    overflows = overflows || __builtin_add_overflow(begin, bytes / kGap * kGap + 2 * kGap, &end_);
    if (overflows) throw UsageError(join("a tensor of the sizes ", shape_text({extents...}), " cannot be addressed"));
    return reinterpret_cast<void*>(begin);
  }

 private:
  uintptr_t end_ = 4096;
};

class Shapes {
 public:
  explicit Shapes(const ExplainOptions& options) : options_(options) {}

  Tensor rows(int64_t heads, int64_t length, int64_t dim) {
    void* data = placeholders_.next(options_.dtype, options_.batch, heads, length, dim);
    return options_.layout == Layout::bshd ? bshd(data, options_.dtype, options_.batch, length, heads, dim)
                                           : bhsd(data, options_.dtype, options_.batch, heads, length, dim);
  }
  Tensor plain(DType type, int64_t extent) { return contiguous(placeholders_.next(type, extent), type, extent); }
  Tensor scores(DType type, int64_t len_q, int64_t len_k) {
    return contiguous(placeholders_.next(type, len_q, len_k), type, 1, 1, len_q, len_k);
  }
  Tensor lse(int64_t heads, int64_t length) {
    const DType type = state_type(options_.dtype);
    void* data = placeholders_.next(type, options_.batch, heads, length);
    return contiguous(data, type, options_.batch, heads, length);
  }

 private:
  const ExplainOptions& options_;
  Placeholders placeholders_;
};

// The tensors of this command are nowhere, so where they would be is a matter of the flags.
template <class Tensors>
std::string explain_anywhere(const Attention& attention, const Tensors& tensors, const ExplainOptions& options) {
  const Execution& execution = options.execution;
  if (execution.device == Device::cpu && !options.arch.empty())
    throw UsageError("--arch is an architecture of CUDA devices; leave it out with --device cpu");
  const bool on_cuda = execution.device == Device::cuda || !options.arch.empty();
  if (!on_cuda) return cuflash::explain(attention, tensors, execution);
  const auto problem = describe(detail::to_c(attention), detail::to_c(tensors), Place{0});
  if (!options.arch.empty()) return cuflash::explain(problem, execution, cuda::arch_named(options.arch));
  if (const std::string why = check::why_no_cuda(); !why.empty()) return explain_none(problem, why.c_str());
  return cuflash::explain(problem, execution);
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  const int64_t heads_k = options.heads_k.value_or(options.heads);
  const int64_t seq_k = options.seq_k.value_or(options.seq_q);
  const int64_t dim_v = options.dim_v.value_or(options.dim);
  Shapes shapes(options);
  const auto q = [&] { return shapes.rows(options.heads, options.seq_q, options.dim); };
  const auto k = [&] { return shapes.rows(heads_k, seq_k, options.dim); };
  const auto v = [&] { return shapes.rows(heads_k, seq_k, dim_v); };
  const auto o = [&] { return shapes.rows(options.heads, options.seq_q, dim_v); };
  const auto lse = [&] { return shapes.lse(options.heads, options.seq_q); };
  const auto bias = [&] { return shapes.scores(DType::f32, options.seq_q, seq_k); };
  const auto head_values = [&] { return shapes.plain(DType::f32, options.heads); };

  Attention attention = options.attention;
  attention.q = q(), attention.k = k(), attention.v = v();
  if (options.alibi) attention.alibi_slopes = head_values();
  if (options.bias) attention.bias = bias();
  if (options.mask) attention.mask = shapes.scores(DType::boolean, options.seq_q, seq_k);
  if (options.sink) attention.sink = head_values();

  if (!options.backward) {
    ForwardOutputs outputs{.o = o()};
    if (options.lse) outputs.lse = lse();
    std::cout << explain_anywhere(attention, outputs, options) << "\n";
    return kExitOk;
  }
  BackwardTensors tensors{.o = o(), .lse = lse(), .dout = o(), .dq = q(), .dk = k(), .dv = v()};
  if (options.bias) tensors.dbias = bias();
  if (options.sink) tensors.dsink = head_values();
  std::cout << explain_anywhere(attention, tensors, options) << "\n";
  return kExitOk;
}

}  // namespace cuflash::cli
