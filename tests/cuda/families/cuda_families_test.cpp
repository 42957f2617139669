// Which family of kernels makes a plan, and the reasons of the families that do not.
#include <gtest/gtest.h>

#include "cuda/families/registry.h"
#include "cuda/plan/typical.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

std::string names_of(const std::vector<Rejection>& rejections) {
  std::string names;
  for (const Rejection& rejection : rejections) names += join(rejection.family, " ");
  return names;
}

// A plan's family serves the architecture, and every family before it says why it does not make the plan.
TEST(Families, TheFirstThatAcceptsMakesThePlan) {
  const Arch hopper = arch_named("sm_90a"), ampere = arch_named("sm_80");
  const ForwardProblem f32 = forward_of({.dtype = DType::f32});
  EXPECT_EQ(plan_forward(forward_of({}), hopper, KernelPreference::best).family, &sm90_forward);
  EXPECT_EQ(names_of(rejections(forward_of({}), hopper, KernelPreference::best)), "sm90_kv ") << "only for few queries";
  const Typical few{.batch = 1, .heads_q = 32, .heads_k = 8, .len_q = 4, .len_k = 4096};
  EXPECT_EQ(plan_forward(forward_of(few), hopper, KernelPreference::best).family, &sm90_forward_by_kv);
  EXPECT_TRUE(rejections(forward_of(few), hopper, KernelPreference::best).empty());
  EXPECT_EQ(plan_forward(forward_of({}), ampere, KernelPreference::best).family, &portable_forward);
  for (const Rejection& rejection : rejections(forward_of({}), ampere, KernelPreference::best))
    EXPECT_STREQ(rejection.reason, "it serves sm_90a only");
  EXPECT_EQ(names_of(rejections(forward_of({}), ampere, KernelPreference::best)), "sm90_kv sm90 ");
  EXPECT_EQ(plan_forward(f32, hopper, KernelPreference::best).family, &portable_forward);
  for (const KernelPreference kernels : {KernelPreference::best, KernelPreference::portable}) {
    const std::vector<Rejection> rejected = rejections(f32, hopper, kernels);
    ASSERT_EQ(names_of(rejected), "sm90_kv sm90 ");
    EXPECT_EQ(std::string_view(rejected[1].reason).find("CUFLASH_CUDA_KERNELS") == 0,
              kernels == KernelPreference::portable);
  }
}

}  // namespace
}  // namespace cuflash::cuda
