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

// The forward kernels attend a cache if neither their query tiles nor the row tiles of the other family are mostly
// empty.
TEST(Families, ManyQueriesOverACacheAreForForward) {
  const Arch hopper = arch_named("sm_90a");
  const auto family_of = [&](const CacheProblem& p, bool has_workspace = true) {
    return plan_kv(p, hopper, 132, KernelPreference::best, nullptr, SplitReduction::exchange, has_workspace).family;
  };
  const TypicalCache many{.len_q = 512, .len_new = 512};
  EXPECT_EQ(family_of(cache_of(many)), &sm90_kv_by_forward);
  EXPECT_EQ(family_of(cache_of({.len_q = 65})), &sm90_kv_by_forward);
  EXPECT_EQ(family_of(cache_of({.len_q = 64})), &sm90_kv) << "a query tile of one warpgroup is enough";
  EXPECT_EQ(family_of(cache_of({.heads_q = 8, .len_q = 256})), &sm90_kv) << "one row tile is enough";
  EXPECT_EQ(family_of(cache_of({.heads_q = 8, .len_q = 257})), &sm90_kv_by_forward);
  EXPECT_EQ(family_of(cache_of(many), false), &sm90_kv) << "no workspace";
  CacheProblem packed = cache_of(many);
  packed.cu_q = packed.cache.rows, packed.batch = 8;
  packed.total_q = 8 * 64;
  EXPECT_EQ(family_of(packed), &sm90_kv) << "one long sequence among short ones";
  ++packed.total_q;
  EXPECT_EQ(family_of(packed), &sm90_kv_by_forward);
  EXPECT_EQ(names_of(rejections(cache_of({}), hopper, KernelPreference::best)), "sm90_forward ");
  EXPECT_EQ(names_of(rejections(cache_of(many), arch_named("sm_80"), KernelPreference::best)), "sm90_forward sm90 ");
  for (const auto& refuse :
       {+[](CacheProblem& p) { p.num_splits = 2; }, +[](CacheProblem& p) { p.dim_qk = 264; },
        +[](CacheProblem& p) { p.cache.leftpad = p.cache.rows; }, +[](CacheProblem& p) { p.k.row_stride += 1; }}) {
    CacheProblem p = cache_of(many);
    refuse(p);
    EXPECT_NE(family_of(p), &sm90_kv_by_forward);
  }
}

}  // namespace
}  // namespace cuflash::cuda
