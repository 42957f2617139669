#include "check/memory/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "check/memory/cuda_session.h"
#include "check/memory/mirror.h"
#include "cuda/driver/device.h"

namespace cuflash::check {
namespace {

template <class Use>
void for_each_tensor(Attention& a, Use use) {
  use(a.q), use(a.k), use(a.v), use(a.alibi_slopes), use(a.bias), use(a.mask), use(a.sink);
  use(a.mask_summary.data);
  use(a.cu_seqlens_q), use(a.cu_seqlens_k), use(a.seqlens_q), use(a.seqlens_k);
}
template <class Use>
void for_each_tensor(ForwardOutputs& t, Use use) {
  use(t.o), use(t.lse);
}
template <class Use>
void for_each_tensor(BackwardTensors& t, Use use) {
  use(t.o), use(t.lse), use(t.dout), use(t.dlse);
  use(t.dq), use(t.dk), use(t.dv), use(t.dbias), use(t.dsink);
}

template <class Use>
void for_each_tensor(CacheTensors& t, Use use) {
  use(t.k), use(t.v), use(t.seqlens), use(t.block_table), use(t.batch_idx), use(t.leftpad);
  use(t.k_new), use(t.v_new), use(t.cu_seqlens_new), use(t.seqlens_new), use(t.rotary_cos), use(t.rotary_sin);
  use(t.o), use(t.lse);
}

int64_t longest(const ConstTensor& cu_seqlens) {
  const auto* cu = static_cast<const int32_t*>(cu_seqlens.data);
  int32_t length = 1;  // a bound of 0 would count as none
  for (int64_t b = 0; b + 1 < cu_seqlens.shape[0]; ++b) length = std::max(length, cu[b + 1] - cu[b]);
  return length;
}

template <class Tensors>
void give_bounds(Attention& a, Tensors&) {
  if (a.cu_seqlens_q && a.max_seqlen_q == 0) a.max_seqlen_q = longest(a.cu_seqlens_q);
  if (a.cu_seqlens_k && a.max_seqlen_k == 0) a.max_seqlen_k = longest(a.cu_seqlens_k);
}
void give_bounds(Attention& a, CacheTensors& t) {
  if (a.cu_seqlens_q && a.max_seqlen_q == 0) a.max_seqlen_q = longest(a.cu_seqlens_q);
  if (t.cu_seqlens_new && t.max_seqlen_new == 0) t.max_seqlen_new = longest(t.cu_seqlens_new);
}

std::atomic<int64_t> nanoseconds_on_cuda = 0;

template <class Tensors>
class CudaCall {
 public:
  CudaCall(const Attention& attention, const Tensors& tensors, const Execution& execution)
      : session_(CudaSession::of_thread()),
        mirror_(session_),
        attention_(attention),
        tensors_(tensors),
        execution_(execution) {
    give_bounds(attention_, tensors_);
    Tensor workspace;
    if (execution.workspace)
      workspace = contiguous(execution.workspace, DType::boolean, static_cast<int64_t>(execution.workspace_size));
    const auto add = [&](const auto& t) { mirror_.add(t); };
    for_each_tensor(attention_, add), for_each_tensor(tensors_, add), add(workspace);
    mirror_.allocate();
    const auto map = [&](auto& t) { t = mirror_.view(t); };
    for_each_tensor(attention_, map), for_each_tensor(tensors_, map), map(workspace);
    execution_.stream = session_.stream();
    execution_.workspace = workspace.data;
    execution_.workspace_from_pool = !workspace;
  }

  template <class Function>
  void run(Function function) {
    const auto start = std::chrono::steady_clock::now();
    mirror_.upload();
    function(attention_, tensors_, execution_);
    mirror_.download();
    nanoseconds_on_cuda += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  }
  size_t workspace_bytes() const { return workspace_size(attention_, tensors_, execution_); }

 private:
  CudaSession& session_;
  Mirror mirror_;
  Attention attention_;
  Tensors tensors_;
  Execution execution_;
};

}  // namespace

void forward(Device device, const Attention& attention, const ForwardOutputs& outputs, const Execution& execution) {
  if (device != Device::cuda) return flash_attention_forward(attention, outputs, execution);
  CudaCall(attention, outputs, execution).run(flash_attention_forward);
}
void backward(Device device, const Attention& attention, const BackwardTensors& tensors, const Execution& execution) {
  if (device != Device::cuda) return flash_attention_backward(attention, tensors, execution);
  CudaCall(attention, tensors, execution).run(flash_attention_backward);
}

void attend_cache(Device device, const Attention& attention, const CacheTensors& cache, const Execution& execution) {
  if (device != Device::cuda) return flash_attention_with_cache(attention, cache, execution);
  CudaCall(attention, cache, execution).run(flash_attention_with_cache);
}

size_t workspace_bytes(Device device, const Attention& attention, const ForwardOutputs& outputs,
                       const Execution& execution) {
  if (device != Device::cuda) return workspace_size(attention, outputs, execution);
  return CudaCall(attention, outputs, execution).workspace_bytes();
}
size_t workspace_bytes(Device device, const Attention& attention, const BackwardTensors& tensors,
                       const Execution& execution) {
  if (device != Device::cuda) return workspace_size(attention, tensors, execution);
  return CudaCall(attention, tensors, execution).workspace_bytes();
}

size_t workspace_bytes(Device device, const Attention& attention, const CacheTensors& cache,
                       const Execution& execution) {
  if (device != Device::cuda) return workspace_size(attention, cache, execution);
  return CudaCall(attention, cache, execution).workspace_bytes();
}

double seconds_on_cuda() { return static_cast<double>(nanoseconds_on_cuda) * 1e-9; }

std::string why_no_cuda() {
  try {
    cuda::device(0);
    return "";
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
}

}  // namespace cuflash::check
