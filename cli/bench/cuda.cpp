#include "cli/bench/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "check/memory/cuda_kernel.h"
#include "check/memory/cuda_session.h"
#include "cli/bench/cublas.h"
#include "cli/bench/problem.h"
#include "cuda/driver/device.h"
#include "cuda/driver/stream.h"
#include "dtype.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using cuda::driver;

constexpr int kMaxCalls = 2000;

// Enough bytes to evict the L2 cache; writing them takes a tenth of a millisecond on an H200.
int64_t flushing_bytes() {
  int cache = 0;
  cuda::check(driver().cuDeviceGetAttribute(&cache, cuda::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, cuda::device(0).handle),
              "cuDeviceGetAttribute");
  return std::max(8 * int64_t{cache}, int64_t{16} << 20);
}

// Functions of libcuda that the library itself does not need.
struct Events {
  cuda::CUresult (*create)(cuda::CUevent*, unsigned);
  cuda::CUresult (*destroy)(cuda::CUevent);
  cuda::CUresult (*record)(cuda::CUevent, cuda::CUstream);
  cuda::CUresult (*elapsed)(float*, cuda::CUevent, cuda::CUevent);
  cuda::CUresult (*copy)(cuda::CUdeviceptr, cuda::CUdeviceptr, size_t, cuda::CUstream);

  Events() {
    void* library = ::dlopen(driver().path.c_str(), RTLD_NOW);
    find(library, "cuEventCreate", create);
    find(library, "cuEventDestroy_v2", destroy);
    find(library, "cuEventRecord", record);
    find(library, "cuEventElapsedTime", elapsed);
    find(library, "cuMemcpyDtoDAsync_v2", copy);
  }
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = library ? reinterpret_cast<Function>(::dlsym(library, name)) : nullptr;
    if (!function) throw FlashAttentionError(CUFLASH_NO_DEVICE, join(driver().path, " has no ", name));
  }
};

// Null without a compiler: the other kernels may come from a pack.
std::unique_ptr<check::CudaKernel> clock_kernel() {
  try {
    return std::make_unique<check::CudaKernel>("clock", kClockSource);
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_NO_DEVICE) throw;
    return nullptr;
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

const char* const kClockSource = R"(
__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
extern "C" __global__ void cuflash_kernel(unsigned long long* result) {
  unsigned long long first = now(), begin = first, end;
  while (begin == first) begin = now();
  const long long cycles = clock64();
  do end = now(); while (end - begin < 50000);
  result[0] = clock64() - cycles, result[1] = end - begin;
}
)";

struct CudaTimer::State {
  using Counts = std::array<unsigned long long, 2>;  // cycles, nanoseconds

  const cuda::DeviceGuard guard{cuda::device(0)};
  check::CudaSession& session = check::CudaSession::of_thread();
  const Events events;
  const std::unique_ptr<check::CudaKernel> clock = clock_kernel();
  BenchMemory memory{true};
  const int64_t flush_bytes = flushing_bytes();
  void* const flush = memory.take(flush_bytes);
  Counts* const clocks = static_cast<Counts*>(memory.take(int64_t{kMaxCalls} * int64_t{sizeof(Counts)}));
  std::vector<cuda::CUevent> pool;  // two per call

  ~State() {
    for (const cuda::CUevent one : pool) events.destroy(one);
  }
  cuda::CUevent event(size_t n) {
    while (pool.size() <= n) {
      cuda::CUevent one = nullptr;
      cuda::check(events.create(&one, 0), "cuEventCreate");
      pool.push_back(one);
    }
    return pool[n];
  }
  void record(size_t n) {
    cuda::check(events.record(event(n), static_cast<cuda::CUstream>(session.stream())), "cuEventRecord");
  }
  double milliseconds(size_t begin, size_t end) {
    float value = 0;
    cuda::check(events.elapsed(&value, event(begin), event(end)), "cuEventElapsedTime");
    return value;
  }
  void time(size_t n, const std::function<void()>& call) {
    cuda::zero(flush, static_cast<size_t>(flush_bytes), session.stream());
    record(2 * n);
    call();
    record(2 * n + 1);
    Counts* result = clocks + n;
    void* params[] = {&result};
    if (clock) clock->launch(1, params, session.stream());
  }
};

CudaTimer::CudaTimer() : state_(std::make_unique<State>()) {}
CudaTimer::~CudaTimer() = default;

CudaTimer::Times CudaTimer::times(const std::function<void()>& call, double seconds) {
  State& state = *state_;
  call(), call();
  state.time(0, call), state.time(1, call);
  state.session.wait();
  const double once = std::max(1e-3, state.milliseconds(0, 2));  // includes a flush
  const size_t calls = static_cast<size_t>(std::clamp(std::ceil(1000 * seconds / once), 5.0, kMaxCalls * 0.75));
  const size_t warm = calls / 3;
  cuda::zero(state.clocks, kMaxCalls * sizeof(State::Counts), state.session.stream());
  for (size_t n = 0; n < warm + calls; ++n) state.time(n, call);
  std::vector<State::Counts> counts(warm + calls);
  state.session.download(reinterpret_cast<std::byte*>(counts.data()), reinterpret_cast<std::byte*>(state.clocks),
                         counts.size() * sizeof(State::Counts));
  state.session.wait();
  Times times;
  for (size_t n = warm; n < warm + calls; ++n) {
    times.milliseconds.push_back(state.milliseconds(2 * n, 2 * n + 1));
    const auto [cycles, nanoseconds] = counts[n];
    if (nanoseconds > 0) times.clocks.push_back(1e3 * static_cast<double>(cycles) / static_cast<double>(nanoseconds));
  }
  return times;
}

std::map<std::string, double> CudaTimer::ceilings(const std::vector<DType>& dtypes, double seconds) {
  State& state = *state_;
  std::map<std::string, double> found;
  constexpr int kSize = 8192;
  const int64_t copied = 2 * state.flush_bytes;
  BenchMemory memory(true);
  {
    const auto from = reinterpret_cast<cuda::CUdeviceptr>(memory.take(copied));
    const auto to = reinterpret_cast<cuda::CUdeviceptr>(memory.take(copied));
    const auto copy = [&] {
      cuda::check(
          state.events.copy(to, from, static_cast<size_t>(copied), static_cast<cuda::CUstream>(state.session.stream())),
          "cuMemcpyDtoDAsync");
    };
    found["read_gbs"] = 2e-6 * static_cast<double>(copied) / median(times(copy, seconds).milliseconds);
  }
  for (const DType type : dtypes) {
    if (type != DType::bf16 && type != DType::f16) continue;
    const int64_t elements = int64_t{kSize} * kSize;
    const void *a = memory.normal(type, elements), *b = memory.normal(type, elements);
    void* c = memory.take(elements * size_of(type));
    const auto multiply = cublas_product(type, kSize, a, b, c, state.session.stream());
    if (!multiply) continue;
    const double operations = 2.0 * kSize * kSize * kSize;
    found[join(name_of(type), "_tflops")] = 1e-9 * operations / median(times(multiply, seconds).milliseconds);
  }
  return found;
}

double free_device_memory() {
  const cuda::DeviceGuard guard(cuda::device(0));
  size_t free = 0, total = 0;
  cuda::check(driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return static_cast<double>(free);
}

std::string first_device_name() { return cuda::device(0).name; }

}  // namespace cuflash::cli
