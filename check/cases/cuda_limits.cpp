// Limits of sweeps on CUDA. A kernel takes seconds to compile and checks a problem in milliseconds, so few of the choices
// that kernels are compiled for must serve many problems.
#include "check/cases/cuda_limits.h"

#include "check/cases/random.h"
#include "cuda/plan/head_sizes.h"

namespace cuflash::check {
namespace {

// The ranges of head sizes that share a kernel.
std::vector<HeadSizes::Range> kernel_sizes() {
  std::vector<HeadSizes::Range> ranges;
  for (int64_t size = 1; size <= cuda::kLargestHeadSize; size = ranges.back().largest + 1)
    ranges.push_back({size, cuda::padded_head_size(size)});
  return ranges;
}

constexpr uint64_t kOptions = 5;

OptionChoice option_choice(uint64_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
}

class KernelSets {
 public:
  KernelSets(uint64_t seed, const Limits& kind) : seed_(seed), kind_(kind), random_(seed) {}

  KernelSet next() {
    KernelSet set;
    const bool fast = kind_.plain || kind_.options;
    const std::vector<DType> types = fast ? std::vector{DType::bf16, DType::f16}
                                          : std::vector{DType::bf16, DType::f16, DType::f32, DType::bf16, DType::f64};
    // Neighbouring sets differ in type and in size, and so do those that have the same size.
    set.dtype = types[(n_ + n_ / sizes_.size()) % types.size()];
    set.stored_as_f32 = !fast && one_in(4);
    const HeadSizes::Range size = sizes_[(seed_ + n_) % sizes_.size()];
    set.head_sizes = one_in(4) ? HeadSizes{size, any_size()} : HeadSizes{size, size};
    set.options = next_options();
    const RowAlignment any = fast ? RowAlignment::vectors : RowAlignment::any;
    set.rows = one_in(2) ? RowAlignment::padded : one_in(3) ? RowAlignment::vectors : any;
    set.every_gradient = !one_in(4);
    set.deterministic = one_in(2);
    if (kind_.cache && n_ % 8 == 7) {
      set.v_in_k = true;
      if (one_in(2)) set.head_sizes = {{576, 576}, {512, 512}};  // latent attention
    }
    ++n_;
    return set;
  }

 private:
  bool one_in(uint64_t count) { return random_.below(count) == 0; }
  HeadSizes::Range any_size() { return sizes_[random_.below(sizes_.size())]; }

  // With --options every combination comes once before the first repeats. Otherwise every third set has no options.
  OptionChoice next_options() {
    constexpr uint64_t kCombinations = (1 << kOptions) - 1, kStep = 12;  // coprime
    if (kind_.plain) return {};
    if (kind_.options) return option_choice(1 + (seed_ + n_ * kStep) % kCombinations);
    return n_ % 3 == 0 ? OptionChoice{} : option_choice(random_.below(kCombinations + 1));
  }

  const uint64_t seed_;
  const Limits& kind_;
  const std::vector<HeadSizes::Range> sizes_ = kernel_sizes();
  Random random_;
  uint64_t n_ = 0;
};

}  // namespace

// Every other pair has equal sizes, cycling through the ranges; seeds start at different ranges.
Limits cuda_limits(uint64_t seed, size_t head_sizes) {
  const std::vector<HeadSizes::Range> ranges = kernel_sizes();
  Random random(seed);
  Limits limits{.device = Device::cuda};
  for (size_t n = 0; n < head_sizes; ++n) {
    const HeadSizes::Range& next = ranges[(seed + n / 2) % ranges.size()];
    const auto any = [&] { return ranges[random.below(ranges.size())]; };
    limits.head_sizes.push_back(n % 2 == 0 ? HeadSizes{next, next} : HeadSizes{any(), any()});
  }
  // No options, each option alone, and some combinations.
  limits.option_sets.push_back({});
  const uint64_t alone = seed % kOptions, together = random.below(1 << kOptions) | 1u << seed / kOptions % kOptions;
  for (const uint64_t set : {uint64_t{1} << alone, together}) limits.option_sets.push_back(option_choice(set));
  return limits;
}

void add_kernel_sets(Limits& limits, uint64_t seed, size_t count) {
  KernelSets sets(seed, limits);
  for (size_t n = 0; n < count; ++n) limits.kernel_sets.push_back(sets.next());
}

}  // namespace cuflash::check
