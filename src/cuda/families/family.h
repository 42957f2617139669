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

// What a plan depends on in addition to the problem.
struct PlanTarget {
  const Arch& arch;
  const tuned::Choice* choice = nullptr;                // null, or the config that a tuner found
  Reproducible reproducible = Reproducible::no;         // backward
  int num_sms = 0;                                      // forward, and over a KV cache
  SplitReduction reduction = SplitReduction::exchange;  // forward, and over a KV cache
  bool has_workspace = true;                            // forward: as in ForwardRun; cache: as in plan_kv
};

// What params depend on in addition to the problem and the plan.
struct LaunchContext {
  int num_sms;
  void* workspace;        // workspace of the size that the plan says
  uint64_t* tile_counts;  // null, or three counters in device memory that are zero
};

// The params of a launch, constructed in place without an allocation or a copy.
class KernelParams {
 public:
  KernelParams() = default;
  KernelParams(const KernelParams&) = delete;
  KernelParams& operator=(const KernelParams&) = delete;

  // make(): returns the struct. size: the leading part of it that kernels without tensor maps get.
  template <class Make>
  void set(Make make, size_t size = sizeof(std::invoke_result_t<Make>)) {
    using Params = std::invoke_result_t<Make>;
    static_assert(sizeof(Params) <= kMax && alignof(Params) <= kAlignment && std::is_trivially_copyable_v<Params>);
    ::new (static_cast<void*>(bytes_)) Params(make());
    size_ = size;
  }

  const void* data() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kMax = 4096, kAlignment = 128;  // CUDA's limit of params, and that of tensor maps

  alignas(kAlignment) std::byte bytes_[kMax];
  size_t size_ = 0;
};

// Kernels that differ in a member that should be as large as possible. The tuner tries the first that fits.
using Alternatives = std::vector<KernelKey>;

template <class Problem, class Plan>
struct Family {
  const char* name;  // "sm90": in explain and in tuned choices

  // Whether the family serves the architecture; null: it serves every architecture.
  bool (*serves)(const Arch& arch);
  const char* serves_only = nullptr;  // which, for explain

  // Why the family does not compute a problem, in a sentence that goes into explain; null: it does.
  const char* (*why_not)(const Problem& problem, const PlanTarget& target);

  // The plan of a problem that the family accepts: the target's choice, or the first of the family's own configs that
  // fits.
  Plan (*plan)(const Problem& problem, const PlanTarget& target);

  // Used by the tuner: configs to try in place of the plan's, the limits of a config, and a config as a choice.
  std::vector<Alternatives> (*candidates)(const Problem& problem, const Plan& plan, const Arch& arch);
  Limits (*limits)(const KernelKey& kernel, const Arch& arch);
  tuned::Choice (*choice)(const KernelKey& kernel);

  // Makes the params of the kernels of a plan.
  void (*params)(const Problem& problem, const Plan& plan, const LaunchContext& context, KernelParams& params);

  // The config, in lines for explain.
  std::string (*describe)(const Plan& plan);

  std::span<const KernelType* const> kernels;

  // Whether the kernels read the summary of a mask tensor instead of the tensor.
  bool reads_mask_summary = false;
};
using ForwardFamily = Family<ForwardProblem, ForwardPlan>;
using BackwardFamily = Family<BackwardProblem, BackwardPlan>;
using KvFamily = Family<CacheProblem, KvPlan>;

inline bool serves_sm90(const Arch& arch) { return arch.wgmma; }
inline constexpr const char* kServesSm90 = "it serves sm_90a only";

}  // namespace cuflash::cuda
