// The share of the processor's peak that forward reaches. All figures are for one thread, from one run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "bench/measure.h"
#include "bench/shared/peak.h"
#include "bench/tables.h"
#include "cpu/isa/kernels.h"
#include "dtype.h"

namespace cuflash::bench {
namespace {

// Some processors slow down after milliseconds of pure multiply-adds, so both the best round and the mean are reported.
struct Rate {
  double best = 0, mean = 0;
};

Rate rate_of(double operations, const Run& run, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
  run();
  const double start = now();
  double best = std::numeric_limits<double>::infinity(), last = start;
  int64_t rounds = 0;
  while (last < start + seconds) {
    run();
    ++rounds;
    const double end = now();
    best = std::min(best, end - last), last = end;
  }
  return {operations / best * 1e-9, operations * static_cast<double>(rounds) / (last - start) * 1e-9};
}

Rate registers(const RegisterLoop& loop, double seconds) {
  const std::vector<float> random = random_values(64, 1);
  constexpr int64_t kSteps = 20000;
  return rate_of(
      static_cast<double>(loop.operations * kSteps), [&] { loop.run(kSteps, random.data()); }, seconds);
}

template <class E>
const cpu::Kernels<float, E>& table_of() {
  if constexpr (std::is_same_v<E, float>) return cpu::kernels<float>();
  else return cpu::matrix_kernels(DType::bf16);
}

// The library's own product, on operands that fit into the first-level cache: 48 rows x lanes, a depth of 128.
template <class E>
Rate product(double seconds) {
  const cpu::Kernels<float, E>& kernels = table_of<E>();
  const int64_t rows = 48, depth = 128;
  const auto operand = [&](int64_t count, uint32_t seed) {
    std::vector<E> data(static_cast<size_t>(count) + 64);
    const DType type = sizeof(E) == 4 ? DType::f32 : DType::bf16;
    store_row(data.data(), type, 0, count + 64, random_values(count + 64, seed).data());
    return data;
  };
  const std::vector<E> left = operand(rows * depth, 1), right = operand(kernels.lanes * depth, 2);
  std::vector<float> sums(static_cast<size_t>(rows * kernels.lanes) + 16);
  const auto aligned = [](auto* p) {
    return reinterpret_cast<decltype(p)>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
  };
  const double operations = 2.0 * static_cast<double>(rows * kernels.lanes * depth);
  constexpr int kRepeat = 200;
  const cpu::ProductSession session(kernels);
  return rate_of(
      operations * kRepeat,
      [&] {
        for (int n = 0; n < kRepeat; ++n)
          kernels.multiply(rows, depth, aligned(left.data()), depth * kernels.rows, aligned(right.data()),
                           aligned(sums.data()), cpu::Into::overwrite, {});
      },
      seconds);
}

void print(const char* type, const std::string& what, const Rate& rate, double peak) {
  print_row({type, what, text("%.1f", rate.best), text("%.1f", rate.mean), text("%.0f%%", 100 * rate.best / peak)});
}

void attention(DType type, double peak, double seconds) {
  for (const int64_t dim : {64, 128}) {
    Workload work({.type = type, .heads = 2, .length = 2048, .dim = dim});
    const Rate forward = rate_of(
        work.forward_operations(), [&] { work.forward(1); }, seconds);
    print(cuflash::name_of(type), "forward, S = 2048, D = " + std::to_string(dim), forward, peak);
    const Rate backward = rate_of(
        work.backward_operations(), [&] { work.backward(1); }, seconds);
    print(cuflash::name_of(type), "backward, S = 2048, D = " + std::to_string(dim), backward, peak);
  }
}

}  // namespace

void peak(const Settings& settings) {
  const double seconds = std::max(settings.seconds, 0.3);
  print_header({"type", "what", "GFLOP/s, best round", "mean", "best to peak"});
  const RegisterLoop f32 = f32_register_loop(), bf16 = bf16_register_loop();
  if (f32.run) {
    const Rate peak = registers(f32, seconds);
    print("f32", std::string(f32.name) + " on registers", peak, peak.best);
    print("f32", "product in the first-level cache", product<float>(seconds), peak.best);
    attention(DType::f32, peak.best, seconds);
  }
  if (!cpu::has_matrix_kernels(DType::bf16)) return;
  const Rate in_cache = product<cpu::Operand16>(seconds);
  const Rate peak = bf16.run ? registers(bf16, seconds) : in_cache;
  if (bf16.run) print("bf16", std::string(bf16.name) + " on registers", peak, peak.best);
  print("bf16", "product in the first-level cache", in_cache, peak.best);
  attention(DType::bf16, peak.best, seconds);
}

}  // namespace cuflash::bench
