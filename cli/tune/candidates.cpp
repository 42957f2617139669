#include "cli/tune/candidates.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>

#include "cli/bench/grid.h"
#include "cli/tune/neighbours.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/plan/tuned_tile.h"
#include "cuda/plan/typical.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using tuned::Choice;
using tuned::Direction;

cuda::Typical typical_of(const BenchPoint& p) {
  return {.dtype = dtype_of(p),
          .dim_qk = p.head_dim,
          .dim_v = p.head_dim_v,
          .options = static_cast<int>(p.options & ~tuned::kSinks),
          .sink = (p.options & tuned::kSinks) != 0,
          .causal = p.causal,
          .batch = p.batch,
          .heads_q = p.heads_q,
          .heads_k = p.heads_k,
          .len_q = p.len_q,
          .len_k = p.len_k};
}

CacheProblem cache_problem(const BenchPoint& p) {
  const int64_t page = std::max<int64_t>(1, p.page_size);
  CacheProblem problem = cuda::cache_of({.dtype = dtype_of(p),
                                         .dim_qk = p.head_dim,
                                         .dim_v = p.head_dim_v,
                                         .batch = p.batch,
                                         .heads_q = p.heads_q,
                                         .heads_k = p.heads_k,
                                         .len_q = p.len_q,
                                         .room = (p.len_k + page - 1) / page * page,
                                         .page_size = p.page_size});
  if (p.causal) problem.window_right = 0;
  return problem;
}

template <class Problem, class Plan>
std::vector<Candidate> near_plan(const Problem& problem, const Plan& plan, const cuda::KernelKey& tuned,
                                 const TuneTarget& target) {
  Collection all(target.arch);
  all.add_built_in(*plan.family, tuned);
  if constexpr (std::is_same_v<Plan, cuda::KvPlan>) add_splits(all, plan);
  add_neighbours(all, problem, plan, target.arch);
  return all.sorted();
}

// The plan does not split keys: a choice decides about tiles, not about how the CTAs of a call share its work.
cuda::ForwardPlan forward_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_forward(cuda::forward_of(typical_of(p)), target.arch, cuda::kernel_preference(), choice,
                            {.has_workspace = false});
}
cuda::BackwardPlan backward_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_backward(cuda::backward_of(typical_of(p)), target.arch, cuda::Reproducible::no,
                             cuda::kernel_preference(), choice);
}
cuda::KvPlan cache_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_kv(cache_problem(p), target.arch, target.num_sms, cuda::kernel_preference(), choice);
}

// An upper limit of the scratch of one thread that a second-level cache can hold.
constexpr size_t kMaxScratch = size_t{4} << 20;

struct CpuTile {
  cpu::TileShape shape;
  size_t scratch;
};
CpuTile cpu_tile(const BenchPoint& p, const Choice& choice) {
  const tuned::ScopedChoice forced(choice);
  const Execution alone{.num_threads = 1};
  if (p.direction == kBackward) {
    const BackwardProblem problem = cuda::backward_of(typical_of(p));
    return {cpu::tile_for(problem, alone.num_threads), cpu::backward_workspace_size(problem, alone)};
  }
  const ForwardProblem problem = cuda::forward_of(typical_of(p));
  return {cpu::tile_for(problem, alone.num_threads), cpu::forward_workspace_size(problem, alone)};
}

// Tiles that become equal because lengths are short or tasks few count once.
std::vector<Candidate> cpu_candidates(const BenchPoint& p) {
  if (p.direction == kDecode || (p.direction == kForward && cpu::takes_decode(cuda::forward_of(typical_of(p)))))
    return {};
  const CpuTile built_in = cpu_tile(p, {});
  std::set<std::pair<int64_t, int64_t>> seen{{built_in.shape.q, built_in.shape.k}};
  const auto candidate = [](const cpu::TileShape& tile, size_t scratch) {
    Candidate one{{"cpu", static_cast<int>(tile.q), static_cast<int>(tile.k)}, {}, false, ""};
    one.limits.shared_bytes = static_cast<int>(std::min<size_t>(scratch, std::numeric_limits<int>::max()));
    one.limits.max_shared_bytes = kMaxScratch;
    return one;
  };
  Collection all({});
  Candidate first = candidate(built_in.shape, built_in.scratch);
  first.built_in = true;
  all.add(std::move(first));
  for (const int q : {64, 128, 256, 512})
    for (const int k : {64, 128, 256, 512}) {
      const Choice choice{"cpu", q, k};
      const CpuTile tile = cpu_tile(p, choice);
      if (!seen.insert({tile.shape.q, tile.shape.k}).second) continue;
      Candidate one = candidate(tile.shape, tile.scratch);
      one.choice = choice;
      // Backward's scratch includes dQ of all queries; only what a larger tile adds to it counts.
      const size_t most = std::max(kMaxScratch, built_in.scratch + kMaxScratch / 2);
      if (tile.scratch > most) one.rejected = join("needs ", tile.scratch, " bytes of scratch, more than ", most);
      all.add(std::move(one));
    }
  return all.sorted();
}

}  // namespace

std::vector<Candidate> candidates_of(const BenchPoint& p, const TuneTarget& target) {
  if (target.cpu) return cpu_candidates(p);
  if (p.direction == kForward) {
    const cuda::ForwardPlan plan = forward_plan(p, target, nullptr);
    return near_plan(cuda::forward_of(typical_of(p)), plan, plan.launch.kernel, target);
  }
  if (p.direction == kBackward) {
    const cuda::BackwardPlan plan = backward_plan(p, target, nullptr);
    return near_plan(cuda::backward_of(typical_of(p)), plan, plan.main.kernel, target);
  }
  const cuda::KvPlan plan = cache_plan(p, target, nullptr);
  return near_plan(cache_problem(p), plan, plan.launch.kernel, target);
}

tuned::Kind kind_of(const BenchPoint& p, const TuneTarget& target) {
  const tuned::Heads heads = target.cpu ? tuned::Heads::any : tuned::Heads::counted;
  if (p.direction == kForward) return *tuned::kind_of(Direction::forward, cuda::forward_of(typical_of(p)), heads);
  if (p.direction == kBackward) return *tuned::kind_of(Direction::backward, cuda::backward_of(typical_of(p)), heads);
  return *tuned::kind_of(Direction::decode, cache_problem(p), heads);
}

cuda::Launch launch_of(const BenchPoint& p, const TuneTarget& target, const Choice& choice) {
  if (p.direction == kForward) return forward_plan(p, target, &choice).launch;
  if (p.direction == kBackward) return backward_plan(p, target, &choice).main;
  return cache_plan(p, target, &choice).launch;
}

}  // namespace cuflash::cli
