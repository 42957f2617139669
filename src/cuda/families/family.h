// A family of kernels: everything that the library knows about the kernels of one architecture for one direction, in
// one value. The portable families serve every architecture. registry.h lists the families in the order in which a plan
// tries them.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "cuda/plan/limits.h"
#include "cuda/plan/plan.h"

namespace cuflash::cuda {

// What a plan depends on beside the problem.
struct PlanTarget {
  const Arch& arch;
  const tuned::Choice* choice = nullptr;                // null, or the config that a tuner found
  Reproducible reproducible = Reproducible::no;         // backward
  int num_sms = 0;                                      // forward, and over a KV cache
  SplitReduction reduction = SplitReduction::exchange;  // likewise
  bool has_workspace = true;                            // forward: as in ForwardRun
};

// What params depend on beside the problem and the plan.
struct LaunchContext {
  int num_sms;
  void* workspace;        // of the size that the plan says
  uint64_t* tile_counts;  // null, or three counters in device memory that are zero
};

// The params of a launch, made in place: no allocation and no copy.
class KernelParams {
 public:
  KernelParams() = default;
  KernelParams(const KernelParams&) = delete;
  KernelParams& operator=(const KernelParams&) = delete;

  // make(): returns the struct. size: the leading part of it that kernels without tensor maps get.
  template <class Make>
  void set(Make make, size_t size = sizeof(std::invoke_result_t<Make>)) {
    using Params = std::invoke_result_t<Make>;
    static_assert(sizeof(Params) <= kMost && alignof(Params) <= kAlignment && std::is_trivially_copyable_v<Params>);
    ::new (static_cast<void*>(bytes_)) Params(make());
    size_ = size;
  }

  const void* data() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kMost = 4096, kAlignment = 128;  // CUDA's limit of params, and that of tensor maps

  alignas(kAlignment) std::byte bytes_[kMost];
  size_t size_ = 0;
};

// Kernels of which the tuner tries the first that fits: they differ in a member that should be as large as possible.
using Alternatives = std::vector<KernelKey>;

template <class Problem, class Plan>
struct Family {
  const char* name;  // "sm90": in explain and in tuned choices

  // Null: every architecture.
  bool (*serves)(const Arch& arch);
  const char* serves_only = nullptr;  // which, for explain

  // Why the family does not compute a problem, in a sentence that goes into explain; null: it does.
  const char* (*why_not)(const Problem& problem, const PlanTarget& target);

  // The plan of a problem that the family accepts: the target's choice, or the first of the family's own configs that
  // fits.
  Plan (*plan)(const Problem& problem, const PlanTarget& target);

  // For the tuner: configs to try in place of the plan's, the limits of a config, and a config as a choice.
  std::vector<Alternatives> (*candidates)(const Problem& problem, const Plan& plan, const Arch& arch);
  Limits (*limits)(const KernelKey& kernel, const Arch& arch);
  tuned::Choice (*choice)(const KernelKey& kernel);

  // What is sent to the kernels of a plan.
  void (*params)(const Problem& problem, const Plan& plan, const LaunchContext& context, KernelParams& params);

  // The config, in lines for explain.
  std::string (*describe)(const Plan& plan);

  std::span<const KernelType* const> kernels;

  // Whether its kernels read the summary of a mask tensor. Otherwise they read the tensor.
  bool reads_mask_summary = false;
};
using ForwardFamily = Family<ForwardProblem, ForwardPlan>;
using BackwardFamily = Family<BackwardProblem, BackwardPlan>;
using KvFamily = Family<CacheProblem, KvPlan>;

inline bool serves_sm90(const Arch& arch) { return arch.wgmma; }
inline constexpr const char* kServesSm90 = "it serves sm_90a only";

}  // namespace cuflash::cuda
