// Host time of a cached call on CUDA, compared with launching an empty kernel in the same run. Calls come in bursts that fit
// into the launch queue, so that the host never waits for the GPU; the median burst counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "check/memory/cuda_kernel.h"
#include "check/memory/cuda_session.h"
#include "check/memory/device.h"
#include "cuda/driver/device.h"
#include "cuda/driver/tensor_map.h"

namespace cuflash {
namespace {

using cuda::driver;

constexpr int kBurst = 100, kBursts = 300;
constexpr double kAllowed = 2.0;  // microseconds on top of an empty launch

double median_microseconds(const std::function<void()>& call, check::CudaSession& session) {
  std::vector<double> times;
  for (int burst = 0; burst < kBursts; ++burst) {
    session.wait();
    const auto start = std::chrono::steady_clock::now();
    for (int n = 0; n < kBurst; ++n) call();
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back(elapsed.count() / kBurst);
  }
  session.wait();
  std::nth_element(times.begin(), times.begin() + kBursts / 2, times.end());
  return times[kBursts / 2];
}

// One tile, so that the GPU finishes before the host does: q, k, v, o and lse of 16 rows, and memory for gradients.
struct TinyCall {
  static constexpr int64_t kRows = 16, kDim = 64;
  cuflash_attention attentions[2];  // alternating, so that no forward call has the addresses of the previous one
  mutable int turn = 0;
  cuflash_forward_outputs outputs;
  cuflash_backward_tensors tensors;
  cuflash_execution execution;

  explicit TinyCall(check::CudaSession& session) {
    constexpr size_t kSlot = 64 << 10;
    std::byte* next = session.memory(32 * kSlot);
    const auto slot = [&] { return std::exchange(next, next + kSlot); };
    const auto rows = [&] { return bhsd<void>(slot(), DType::bf16, 1, 1, kRows, kDim); };
    const Tensor o = rows(), lse = contiguous<void>(slot(), DType::f32, 1, 1, kRows);
    for (cuflash_attention& attention : attentions)
      attention = detail::to_c(Attention{.q = rows(), .k = rows(), .v = rows(), .causal = true});
    outputs = detail::to_c(ForwardOutputs{.o = o, .lse = lse});
    tensors =
        detail::to_c(BackwardTensors{.o = o, .lse = lse, .dout = rows(), .dq = rows(), .dk = rows(), .dv = rows()});
    execution = detail::to_c(Execution{.stream = session.stream()});
    size_t bytes = 0;
    detail::check(cuflash_backward_workspace_size(attentions, &tensors, &execution, &bytes));
    execution.workspace = session.allocate(bytes), execution.workspace_size = bytes;
  }
  void forward() const { detail::check(cuflash_forward(&attentions[turn ^= 1], &outputs, &execution)); }
  void backward() const { detail::check(cuflash_backward(attentions, &tensors, &execution)); }
  void query() const {
    size_t bytes = 0;
    detail::check(cuflash_forward_workspace_size(attentions, &outputs, &execution, &bytes));
  }
};

void ask_about(const void* data) {
  unsigned type = 0, managed = 0;
  int ordinal = 0;
  cuda::CUpointer_attribute which[] = {cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cuda::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                       cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  driver().cuPointerGetAttributes(3, which, values, reinterpret_cast<cuda::CUdeviceptr>(data));
}

int run() {
  if (const std::string why = check::why_no_cuda(); !why.empty()) {
    std::printf("cuflash_overhead: skipped, there is no GPU: %s\n", why.c_str());
    return 0;
  }
  check::CudaSession& session = check::CudaSession::of_thread();
  const cuda::DeviceGuard guard(cuda::device(0));
  const check::CudaKernel empty("empty", "extern \"C\" __global__ void cuflash_kernel() {}\n");
  const auto launch_empty = [&] { empty.launch(128, nullptr, session.stream()); };
  const TinyCall call(session);
  const auto time = [&](const std::function<void()>& f) { return median_microseconds(f, session); };
  time(launch_empty);  // warm

  const double launch = time(launch_empty);
  const double forward = time([&] { call.forward(); }), again = time(launch_empty);
  const double added = forward - std::min(launch, again);
  std::printf("| host time of | us |\n|---|---|\n");
  std::printf("| an empty launch | %.2f (again: %.2f) |\n", launch, again);
  std::printf("| a cached forward call | %.2f |\n", forward);
  std::printf("| what it adds to the launch | %.2f (allowed: %.1f) |\n", added, kAllowed);
  std::printf("| of which validation, places and plan | %.2f |\n", time([&] { call.query(); }));
  std::printf("| asking where one pointer points to | %.3f |\n", time([&] { ask_about(call.attentions[0].q.data); }));
  std::printf("| a cached backward call, several launches | %.2f |\n", time([&] { call.backward(); }));
  if (cuda::device(0).arch.wgmma) {
    const ConstRows rows{call.attentions[0].q.data, DType::bf16, 4096, 4096, 64};
    int64_t batch = 0;
    const auto map = [&](int64_t b) { cuda::tensor_map(rows, {64, 16, 1, b}, 64); };
    std::printf("| a tensor map of a layout that is known | %.3f |\n", time([&] { map(1); }));
    std::printf("| a tensor map of one that is not | %.3f |\n", time([&] { map(1 + ++batch % 100); }));
  }
  return added <= kAllowed ? 0 : 1;
}

}  // namespace
}  // namespace cuflash

int main() {
  try {
    return cuflash::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuflash_overhead: %s\n", error.what());
    return 1;
  }
}
