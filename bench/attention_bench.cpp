// Speed of forward and backward over the shapes people ask about, and of naive attention beside them.
// The GFLOP/s column counts the two (backward: five) matrix products of visible scores, as the papers do.
#include <benchmark/benchmark.h>
#include <cuflash/flash_attention.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dtype.h"
#include "reference/naive.h"

namespace cuflash {
namespace {

struct Shape {
  DType type;
  int64_t length, dim;
  bool causal;
};

constexpr int64_t kHeads = 8;

std::vector<std::byte> random_tensor(DType type, int64_t elements, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& value : values) value = normal(engine);
  std::vector<std::byte> stored(static_cast<size_t>(elements * size_of(type)));
  store_row(stored.data(), type, 0, elements, values.data());
  return stored;
}

// Q, K, V, O and their gradients of one problem, in one type.
class Workload {
 public:
  explicit Workload(const Shape& shape) : shape_(shape), lse_(static_cast<size_t>(kHeads * shape.length)) {
    const int64_t elements = kHeads * shape.length * shape.dim;
    for (uint32_t seed = 0; auto* tensor : {&q_, &k_, &v_, &dout_})
      *tensor = random_tensor(shape.type, elements, ++seed);
    for (auto* tensor : {&o_, &dq_, &dk_, &dv_}) tensor->resize(q_.size());
  }

  Attention attention() { return {.q = view(q_), .k = view(k_), .v = view(v_), .causal = shape_.causal}; }
  ForwardOutputs outputs() { return {.o = view(o_), .lse = lse()}; }
  BackwardTensors gradients() {
    return {.o = view(o_), .lse = lse(), .dout = view(dout_), .dq = view(dq_), .dk = view(dk_), .dv = view(dv_)};
  }
  double products(int count) const {
    const double pairs =
        static_cast<double>(shape_.length) * static_cast<double>(shape_.length) / (shape_.causal ? 2 : 1);
    return 2.0 * count * static_cast<double>(kHeads) * pairs * static_cast<double>(shape_.dim);
  }

 private:
  Tensor view(std::vector<std::byte>& data) const {
    return bhsd(static_cast<void*>(data.data()), shape_.type, 1, kHeads, shape_.length, shape_.dim);
  }
  Tensor lse() { return contiguous(lse_.data(), int64_t{1}, kHeads, shape_.length); }

  Shape shape_;
  std::vector<std::byte> q_, k_, v_, o_, dout_, dq_, dk_, dv_;
  std::vector<float> lse_;
};

void count_work(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void forward(benchmark::State& state, const Shape& shape) {
  Workload work(shape);
  for (auto _ : state) flash_attention_forward(work.attention(), work.outputs());
  count_work(state, work.products(2));
}

void backward(benchmark::State& state, const Shape& shape) {
  Workload work(shape);
  flash_attention_forward(work.attention(), work.outputs());
  for (auto _ : state) flash_attention_backward(work.attention(), work.gradients());
  count_work(state, work.products(5));
}

void naive_forward(benchmark::State& state, const Shape& shape) {
  Workload work(shape);
  for (auto _ : state) benchmark::DoNotOptimize(reference::naive_forward(work.attention()));
  count_work(state, work.products(2));
}

void register_all() {
  const auto add = [](const char* name, auto function, const Shape& shape) {
    const std::string label = std::string(name) + "/" + name_of(shape.type) + "/S" + std::to_string(shape.length) +
                              "/D" + std::to_string(shape.dim) + (shape.causal ? "/causal" : "/full");
    benchmark::RegisterBenchmark(label.c_str(), function, shape)->Unit(benchmark::kMillisecond)->UseRealTime();
  };
  for (const bool causal : {false, true})
    for (const int64_t length : {512, 2048}) {
      for (const int64_t dim : {64, 128})
        for (const DType type : {DType::f32, DType::bf16}) {
          add("forward", forward, {type, length, dim, causal});
          add("backward", backward, {type, length, dim, causal});
        }
      add("naive_forward", naive_forward, {DType::f32, length, 64, causal});
    }
}

}  // namespace
}  // namespace cuflash

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  cuflash::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
