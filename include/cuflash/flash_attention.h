// cuflash: exact, IO-aware attention. The C++ API.
//
// The same calls as cuflash.h, typed, with designated initialisers and exceptions:
//
//   flash_attention_forward({.q = bhsd(q, B, H, S, D), .k = bhsd(k, B, H, S, D), .v = bhsd(v, B, H, S, D), .causal = true},
//                           {.o = bhsd(o, B, H, S, D)});
//
// Header-only over the C ABI, so that no C++ type crosses the library's boundary. cuflash.h documents every field.
#pragma once

#include <cuflash/cuflash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace cuflash {

enum class DType : int32_t {
  f64 = CUFLASH_F64,
  f32 = CUFLASH_F32,
  f16 = CUFLASH_F16,
  bf16 = CUFLASH_BF16,
  i32 = CUFLASH_I32,
  boolean = CUFLASH_BOOL,
};

enum class Alignment : int32_t { bottom_right = CUFLASH_BOTTOM_RIGHT, top_left = CUFLASH_TOP_LEFT };

enum class Device : int32_t { automatic = CUFLASH_DEVICE_AUTO, cpu = CUFLASH_DEVICE_CPU, cuda = CUFLASH_DEVICE_CUDA };

class FlashAttentionError : public std::runtime_error {
 public:
  FlashAttentionError(cuflash_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  cuflash_status status() const noexcept { return status_; }

 private:
  cuflash_status status_;
};

// A view of the caller's memory; Pointer is const void* for inputs and void* for outputs. Default-constructed: absent.
template <class Pointer>
struct BasicTensor {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int32_t rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};  // in elements

  // Every output view is a valid input view.
  operator BasicTensor<const void*>() const requires(!std::is_same_v<Pointer, const void*>) {
    return {data, dtype, rank, shape, stride};
  }
  explicit operator bool() const { return rank != 0; }
};
using ConstTensor = BasicTensor<const void*>;
using Tensor = BasicTensor<void*>;

template <class T>
constexpr DType dtype_of() {
  using Value = std::remove_const_t<T>;
  static_assert(std::is_same_v<Value, double> || std::is_same_v<Value, float> || std::is_same_v<Value, int32_t> ||
                    std::is_same_v<Value, bool> || std::is_same_v<Value, uint8_t>,
                "name the DType of a pointer to a 16-bit type: bhsd(pointer, DType::bf16, ...)");
  if constexpr (std::is_same_v<Value, double>) return DType::f64;
  if constexpr (std::is_same_v<Value, float>) return DType::f32;
  if constexpr (std::is_same_v<Value, int32_t>) return DType::i32;
  return DType::boolean;
}

template <class T>
using TensorOf = std::conditional_t<std::is_const_v<T>, ConstTensor, Tensor>;

// Memory [batch, heads, length, dim].
template <class T>
TensorOf<T> bhsd(T* data, DType dtype, int64_t batch, int64_t heads, int64_t length, int64_t dim) {
  return {data, dtype, 4, {batch, heads, length, dim}, {heads * length * dim, length * dim, dim, 1}};
}
// Memory [batch, length, heads, dim]. The logical shape stays [batch, heads, length, dim].
template <class T>
TensorOf<T> bshd(T* data, DType dtype, int64_t batch, int64_t length, int64_t heads, int64_t dim) {
  return {data, dtype, 4, {batch, heads, length, dim}, {length * heads * dim, dim, heads * dim, 1}};
}
// Packed memory [total, heads, dim].
template <class T>
TensorOf<T> thd(T* data, DType dtype, int64_t total, int64_t heads, int64_t dim) {
  return {data, dtype, 3, {total, heads, dim}, {heads * dim, dim, 1}};
}
// A contiguous tensor of rank 1 to 4: LSE, bias, mask, slopes, sinks, lengths.
template <class T, class... Extent>
TensorOf<T> contiguous(T* data, DType dtype, Extent... extents) {
  static_assert(sizeof...(Extent) >= 1 && sizeof...(Extent) <= 4);
  TensorOf<T> t{data, dtype, static_cast<int32_t>(sizeof...(Extent)), {static_cast<int64_t>(extents)...}, {}};
  int64_t stride = 1;
  for (int32_t d = t.rank; d-- > 0;) {
    t.stride[static_cast<size_t>(d)] = stride;
    stride *= t.shape[static_cast<size_t>(d)];
  }
  return t;
}

// The same, with the type taken from the pointer.
template <class T>
TensorOf<T> bhsd(T* data, int64_t batch, int64_t heads, int64_t length, int64_t dim) {
  return bhsd(data, dtype_of<T>(), batch, heads, length, dim);
}
template <class T>
TensorOf<T> bshd(T* data, int64_t batch, int64_t length, int64_t heads, int64_t dim) {
  return bshd(data, dtype_of<T>(), batch, length, heads, dim);
}
template <class T>
TensorOf<T> thd(T* data, int64_t total, int64_t heads, int64_t dim) {
  return thd(data, dtype_of<T>(), total, heads, dim);
}
template <class T, class... Extent>
requires(std::is_integral_v<Extent>&&...) TensorOf<T> contiguous(T* data, Extent... extents) {
  return contiguous(data, dtype_of<T>(), extents...);
}

// The result of summarize_mask, which any number of calls read in place of the mask tensor.
struct SummarizedMask {
  ConstTensor data{};  // words in the caller's memory
  std::array<int64_t, 4> shape{};

  explicit operator bool() const { return bool{data}; }
};

struct Attention {
  ConstTensor q;
  ConstTensor k{}, v{};  // absent if they are in a cache: see cached_attention.h

  std::optional<double> scale{};  // default: 1/sqrt(D)
  bool causal = false;
  Alignment alignment = Alignment::bottom_right;
  int64_t window_left = -1;
  int64_t window_right = -1;
  double softcap = 0;

  ConstTensor alibi_slopes{};
  ConstTensor bias{};
  ConstTensor mask{};
  ConstTensor sink{};

  double dropout_p = 0;
  uint64_t dropout_seed = 0;
  uint64_t dropout_offset = 0;

  ConstTensor cu_seqlens_q{}, cu_seqlens_k{};
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  ConstTensor seqlens_q{}, seqlens_k{};

  SummarizedMask mask_summary{};
};

struct ForwardOutputs {
  Tensor o;
  Tensor lse{};
};

struct BackwardTensors {
  ConstTensor o, lse, dout;
  ConstTensor dlse{};
  Tensor dq{}, dk{}, dv{};
  Tensor dbias{}, dsink{};
};

using TileStats = cuflash_tile_stats;

struct Execution {
  Device device = Device::automatic;
  int32_t num_threads = 0;
  bool deterministic = false;
  void* stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_size = 0;
  cuflash_parallel_for parallel_for = nullptr;
  void* parallel_for_context = nullptr;
  TileStats* tile_stats = nullptr;
  bool workspace_from_pool = false;
  bool check_lengths = false;
  cuflash_allocate allocate = nullptr;
  void* allocate_context = nullptr;
};

namespace detail {

inline cuflash_tensor to_c(const ConstTensor& t) {
  cuflash_tensor c{t.data, static_cast<int32_t>(t.dtype), t.rank, {}, {}};
  for (size_t d = 0; d < 4; ++d) c.shape[d] = t.shape[d], c.stride[d] = t.stride[d];
  return c;
}
inline cuflash_mutable_tensor to_c(const Tensor& t) {
  cuflash_mutable_tensor c{t.data, static_cast<int32_t>(t.dtype), t.rank, {}, {}};
  for (size_t d = 0; d < 4; ++d) c.shape[d] = t.shape[d], c.stride[d] = t.stride[d];
  return c;
}
inline cuflash_attention to_c(const Attention& a) {
  cuflash_attention c;
  cuflash_attention_init(&c);
  c.q = to_c(a.q), c.k = to_c(a.k), c.v = to_c(a.v);
  c.scale = a.scale.value_or(0), c.has_scale = a.scale.has_value();
  c.causal = a.causal, c.alignment = static_cast<int32_t>(a.alignment);
  c.window_left = a.window_left, c.window_right = a.window_right, c.softcap = a.softcap;
  c.alibi_slopes = to_c(a.alibi_slopes), c.bias = to_c(a.bias), c.mask = to_c(a.mask), c.sink = to_c(a.sink);
  c.dropout_p = a.dropout_p, c.dropout_seed = a.dropout_seed, c.dropout_offset = a.dropout_offset;
  c.cu_seqlens_q = to_c(a.cu_seqlens_q), c.cu_seqlens_k = to_c(a.cu_seqlens_k);
  c.max_seqlen_q = a.max_seqlen_q, c.max_seqlen_k = a.max_seqlen_k;
  c.seqlens_q = to_c(a.seqlens_q), c.seqlens_k = to_c(a.seqlens_k);
  c.mask_summary = to_c(a.mask_summary.data);
  for (size_t d = 0; d < 4; ++d) c.mask_summary_shape[d] = a.mask_summary.shape[d];
  return c;
}
inline cuflash_forward_outputs to_c(const ForwardOutputs& t) {
  cuflash_forward_outputs c;
  cuflash_forward_outputs_init(&c);
  c.o = to_c(t.o), c.lse = to_c(t.lse);
  return c;
}
inline cuflash_backward_tensors to_c(const BackwardTensors& t) {
  cuflash_backward_tensors c;
  cuflash_backward_tensors_init(&c);
  c.o = to_c(t.o), c.lse = to_c(t.lse), c.dout = to_c(t.dout), c.dlse = to_c(t.dlse);
  c.dq = to_c(t.dq), c.dk = to_c(t.dk), c.dv = to_c(t.dv), c.dbias = to_c(t.dbias), c.dsink = to_c(t.dsink);
  return c;
}
inline cuflash_execution to_c(const Execution& e) {
  cuflash_execution c;
  cuflash_execution_init(&c);
  c.device = static_cast<int32_t>(e.device), c.num_threads = e.num_threads, c.deterministic = e.deterministic;
  c.stream = e.stream, c.workspace = e.workspace, c.workspace_size = e.workspace_size;
  c.parallel_for = e.parallel_for, c.parallel_for_context = e.parallel_for_context, c.tile_stats = e.tile_stats;
  c.workspace_from_pool = e.workspace_from_pool, c.check_lengths = e.check_lengths;
  c.allocate = e.allocate, c.allocate_context = e.allocate_context;
  return c;
}
inline void check(cuflash_status status) {
  if (status != CUFLASH_OK) throw FlashAttentionError(status, cuflash_last_error());
}

// The C structs of a call.
template <class Tensors>
struct CStructs {
  CStructs(const Attention& a, const Tensors& t, const Execution& e)
      : attention(to_c(a)), tensors(to_c(t)), execution(to_c(e)) {}

  cuflash_attention attention;
  decltype(to_c(std::declval<const Tensors&>())) tensors;
  cuflash_execution execution;
};
template <class Function, class Tensors>
std::string explain(Function function, const Attention& attention, const Tensors& tensors, const Execution& execution) {
  const CStructs c(attention, tensors, execution);
  size_t needed = 0;
  check(function(&c.attention, &c.tensors, &c.execution, nullptr, 0, &needed));
  std::string text(needed, '\0');
  check(function(&c.attention, &c.tensors, &c.execution, text.data(), needed, &needed));
  text.resize(needed - 1);
  return text;
}

}  // namespace detail

inline void flash_attention_forward(const Attention& attention, const ForwardOutputs& outputs,
                                    const Execution& execution = {}) {
  const detail::CStructs c(attention, outputs, execution);
  detail::check(cuflash_forward(&c.attention, &c.tensors, &c.execution));
}

inline void flash_attention_backward(const Attention& attention, const BackwardTensors& tensors,
                                     const Execution& execution = {}) {
  const detail::CStructs c(attention, tensors, execution);
  detail::check(cuflash_backward(&c.attention, &c.tensors, &c.execution));
}

inline size_t workspace_size(const Attention& attention, const ForwardOutputs& outputs,
                             const Execution& execution = {}) {
  const detail::CStructs c(attention, outputs, execution);
  size_t bytes = 0;
  detail::check(cuflash_forward_workspace_size(&c.attention, &c.tensors, &c.execution, &bytes));
  return bytes;
}
inline size_t workspace_size(const Attention& attention, const BackwardTensors& tensors,
                             const Execution& execution = {}) {
  const detail::CStructs c(attention, tensors, execution);
  size_t bytes = 0;
  detail::check(cuflash_backward_workspace_size(&c.attention, &c.tensors, &c.execution, &bytes));
  return bytes;
}

// Bytes of the summary of a mask.
inline size_t mask_summary_size(const ConstTensor& mask) {
  const cuflash_tensor c_mask = detail::to_c(mask);
  size_t bytes = 0;
  detail::check(cuflash_mask_summary_size(&c_mask, &bytes));
  return bytes;
}

// Makes the summary of a mask in `memory`, which must outlive the calls that read it.
inline SummarizedMask summarize_mask(const ConstTensor& mask, void* memory, size_t bytes,
                                     const Execution& execution = {}) {
  const Tensor summary = contiguous(static_cast<int32_t*>(memory), static_cast<int64_t>(bytes / sizeof(int32_t)));
  const cuflash_tensor c_mask = detail::to_c(mask);
  const cuflash_mutable_tensor c_summary = detail::to_c(summary);
  const cuflash_execution c_execution = detail::to_c(execution);
  SummarizedMask made{summary};
  detail::check(cuflash_summarize_mask(&c_mask, &c_summary, &c_execution, made.shape.data()));
  return made;
}

// Explains which backend and kernel the call would use and why, or why there is none.
inline std::string explain(const Attention& attention, const ForwardOutputs& outputs, const Execution& execution = {}) {
  return detail::explain(cuflash_explain_forward, attention, outputs, execution);
}
inline std::string explain(const Attention& attention, const BackwardTensors& tensors,
                           const Execution& execution = {}) {
  return detail::explain(cuflash_explain_backward, attention, tensors, execution);
}

}  // namespace cuflash
