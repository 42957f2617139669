#include "cli/tune_candidates.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cli/bench_grid.h"
#include "cli/text.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/tuned_tile.h"
#include "cuda/tuned_config.h"
#include "cuda/typical.h"

namespace cuflash::cli {

namespace {

using tuned::Choice;
using tuned::Direction;
using tuned::Family;

cuda::Typical typical_of(const BenchPoint& p) {
  return {.dtype = dtype_of(p),
          .dim_qk = p.head_dim,
          .dim_v = p.head_dim_v,
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

std::string reason_of(const cuda::Limits& l) {
  if (l.fault == cuda::Fault::shared_memory)
    return join("needs ", l.shared_bytes, " bytes of shared memory, there are ", l.shared_most);
  if (l.fault == cuda::Fault::registers)
    return join("needs about ", l.registers, " registers, there are ", l.registers_most);
  if (l.fault == cuda::Fault::crowded) return "its CTAs do not fit side by side into the shared memory";
  return "";
}

// Collects configs. Those whose shape no kernel has are passed over; of the numbers of CTAs, or of stages, that a tile may
// have beside it, the first that fits is taken, since the tile decides.
class Collection {
 public:
  explicit Collection(const cuda::Arch& arch) : arch_(arch) {}

  template <class Config>
  void add_built_in(const Config& config) {
    all_.push_back({cuda::choice_of(config), limits_of(config, arch_), true, ""});
  }

  template <class Config>
  void add_first(const std::vector<Config>& configs) {
    Candidate refused;
    for (const Config& config : configs) {
      Candidate candidate{cuda::choice_of(config), limits_of(config, arch_), false, ""};
      if (candidate.limits.fault == cuda::Fault::shape) continue;
      candidate.rejected = reason_of(candidate.limits);
      if (candidate.rejected.empty()) return add(std::move(candidate));
      refused = std::move(candidate);  // the smallest of them
    }
    if (refused.choice.family != Family::built_in) add(std::move(refused));
  }

  void add(Candidate candidate) {
    const auto same = [&](const Candidate& other) { return other.choice == candidate.choice; };
    if (std::none_of(all_.begin(), all_.end(), same)) all_.push_back(std::move(candidate));
  }

  const cuda::Arch& arch() const { return arch_; }

  std::vector<Candidate> sorted() {
    const Choice built_in = all_.front().choice;
    const auto distance = [&](const Candidate& candidate) {
      return std::count_if(tuned::kMembers.begin(), tuned::kMembers.end(), [&](const tuned::Member& member) {
        return candidate.choice.*member.value != built_in.*member.value;
      });
    };
    std::stable_sort(all_.begin() + 1, all_.end(),
                     [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
    return std::move(all_);
  }

 private:
  cuda::Arch arch_;
  std::vector<Candidate> all_;
};

struct Lists {
  std::vector<int> tile_q, tile_k;
};
Lists forward_lists(Element e) {
  if (e == Element::f64) return {{16, 32, 64}, {16, 32}};
  if (e == Element::f32) return {{32, 64, 128}, {32, 64}};
  return {{64, 128}, {32, 64, 128}};
}
Lists backward_lists(Element e) {
  if (e == Element::f64) return {{16, 32}, {16, 32, 64}};
  if (e == Element::f32) return {{16, 32, 64}, {32, 64}};
  return {{32, 64}, {32, 64, 128}};
}

// Kernels that just fit the registers of several CTAs spill more often than not; fewer CTAs leave room.
template <class Config>
void add_with(int ctas, Config c, std::vector<Config>& configs, const cuda::Arch& arch) {
  constexpr int kRoom = 12;
  c.ctas_per_sm = ctas;
  const cuda::Limits limits = limits_of(c, arch);
  if (ctas == 1 || limits.registers + kRoom <= limits.registers_most) configs.push_back(c);
}

void add_neighbours(Collection& all, const ForwardConfig& built_in) {
  const Lists lists = forward_lists(built_in.element);
  ForwardConfig c = built_in;
  for (const int tile_q : lists.tile_q)
    for (const int tile_k : lists.tile_k)
      for (const int row_warps : {1, 2, 4, 8})
        for (const int column_warps : {1, 2, 4})
          for (const int stages : {1, 2}) {
            c.tile_q = tile_q, c.tile_k = tile_k, c.row_warps = row_warps, c.column_warps = column_warps;
            c.stages = stages;
            if (row_warps * column_warps > 8 || tile_q > 32 * row_warps) continue;
            std::vector<ForwardConfig> configs;
            for (const int ctas : {3, 2, 1}) add_with(ctas, c, configs, all.arch());
            all.add_first(configs);
          }
}

void add_neighbours(Collection& all, const HopperForwardConfig& built_in) {
  HopperForwardConfig c = built_in;
  for (const int order : {int{kTurns}, int{kHoldWait}}) {
    c.order = order;
    all.add_first<HopperForwardConfig>({c});
  }
  c.order = kTurns | kHoldWait;
  for (const int warpgroups : {2, 3, 4})
    for (int tile_k = 48; tile_k <= 176; tile_k += 16) {
      c.warpgroups = warpgroups, c.tile_k = tile_k;
      std::vector<HopperForwardConfig> configs;
      for (const int stages : {4, 3, 2}) c.stages = stages, configs.push_back(c);
      all.add_first(configs);
      if (tile_k == built_in.tile_k && warpgroups == built_in.warpgroups)
        for (const HopperForwardConfig& one : configs) all.add_first<HopperForwardConfig>({one});
    }
}

void add_neighbours(Collection& all, const BackwardConfig& built_in) {
  const Lists lists = backward_lists(built_in.element);
  BackwardConfig c = built_in;
  for (const int tile_q : lists.tile_q)
    for (const int tile_k : lists.tile_k)
      for (const int key_warps : {1, 2, 4})
        for (const int column_warps : {1, 2, 4, 8})
          for (const int stages : {1, 2}) {
            c.tile_q = tile_q, c.tile_k = tile_k, c.key_warps = key_warps, c.column_warps = column_warps;
            c.stages = stages;
            if (key_warps * column_warps > 8 || tile_k > 32 * key_warps) continue;
            std::vector<BackwardConfig> configs;
            for (const int ctas : {2, 1}) add_with(ctas, c, configs, all.arch());
            all.add_first(configs);
          }
}

void add_neighbours(Collection& all, const HopperBackwardConfig& built_in) {
  HopperBackwardConfig c = built_in;
  for (const int warpgroups : {1, 2, 3})
    for (const int stages : {2, 3, 4}) {
      c.warpgroups = warpgroups, c.stages = stages;
      all.add_first<HopperBackwardConfig>({c});
    }
}

void add_neighbours(Collection& all, const CacheConfig& built_in, int64_t rows, int64_t splits) {
  // How a problem is cut matters more than the tile.
  for (const auto& [times, over] : {std::pair{1, 4}, {1, 2}, {3, 4}, {3, 2}, {2, 1}, {4, 1}}) {
    Candidate other{cuda::choice_of(built_in), {}, false, ""};
    other.choice.splits = static_cast<int>(std::max<int64_t>(1, splits * times / over));
    if (other.choice.splits != splits) all.add(std::move(other));
  }
  CacheConfig c = built_in;
  for (const int tile_q : {16, 32, 64})
    for (const int tile_k : {16, 32, 64, 128})
      for (const int key_warps : {1, 2, 4, 8})
        for (const int column_warps : {1, 2, 4})
          for (const int ctas : {1, 2, 3}) {
            if (tile_q > 16 && rows <= tile_q / 2) continue;
            c.tile_q = tile_q, c.row_warps = tile_q / 16, c.tile_k = tile_k;
            c.key_warps = key_warps, c.column_warps = column_warps, c.ctas_per_sm = ctas;
            const int warps = c.row_warps * key_warps * column_warps;
            if (warps < 4 || warps > 8) continue;  // fewer keep too few copies on their way
            std::vector<CacheConfig> configs;
            for (const int stages : {4, 3, 2}) c.stages = stages, configs.push_back(c);
            all.add_first(configs);
          }
}

template <class Plan>
std::vector<Candidate> near_plan(const Plan& plan, const TuneTarget& target) {
  Collection all(target.arch);
  std::visit(
      [&](const auto& config) {
        all.add_built_in(config);
        add_neighbours(all, config);
      },
      plan.config);
  return all.sorted();
}

cuda::ForwardPlan forward_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_forward(cuda::forward_of(typical_of(p)), target.arch, cuda::wanted_kernels(), choice);
}
cuda::BackwardPlan backward_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_backward(cuda::backward_of(typical_of(p)), target.arch, cuda::Reproducible::no,
                             cuda::wanted_kernels(), choice);
}
cuda::CachePlan cache_plan(const BenchPoint& p, const TuneTarget& target, const Choice* choice) {
  return cuda::plan_cache(cache_problem(p), target.arch, target.num_sms, cuda::wanted_kernels(), choice);
}

// Scratch of one thread beyond this is in no second-level cache.
constexpr size_t kMostScratch = size_t{4} << 20;

struct CpuTile {
  cpu::TileShape shape;
  size_t scratch;
};
CpuTile cpu_tile(const BenchPoint& p, const Choice& choice) {
  const tuned::Forced forced(choice);
  const Execution alone{.num_threads = 1};
  if (p.direction == kBackward) {
    const BackwardProblem problem = cuda::backward_of(typical_of(p));
    return {cpu::tile_for(problem), cpu::backward_workspace_size(problem, alone)};
  }
  const ForwardProblem problem = cuda::forward_of(typical_of(p));
  return {cpu::tile_for(problem), cpu::forward_workspace_size(problem, alone)};
}

// Tiles that come out the same, since lengths are shorter or tasks few, are one.
std::vector<Candidate> cpu_candidates(const BenchPoint& p) {
  if (p.direction == kDecode || (p.direction == kForward && cpu::takes_decode(cuda::forward_of(typical_of(p)))))
    return {};
  const CpuTile built_in = cpu_tile(p, {});
  std::set<std::pair<int64_t, int64_t>> seen{{built_in.shape.q, built_in.shape.k}};
  const auto candidate = [](const cpu::TileShape& tile, size_t scratch) {
    Candidate one{{Family::cpu, static_cast<int>(tile.q), static_cast<int>(tile.k)}, {}, false, ""};
    one.limits.shared_bytes = static_cast<int>(std::min<size_t>(scratch, std::numeric_limits<int>::max()));
    one.limits.shared_most = kMostScratch;
    return one;
  };
  Collection all({});
  Candidate first = candidate(built_in.shape, built_in.scratch);
  first.built_in = true;
  all.add(std::move(first));
  for (const int q : {64, 128, 256, 512})
    for (const int k : {64, 128, 256, 512}) {
      const Choice choice{Family::cpu, q, k};
      const CpuTile tile = cpu_tile(p, choice);
      if (!seen.insert({tile.shape.q, tile.shape.k}).second) continue;
      Candidate one = candidate(tile.shape, tile.scratch);
      one.choice = choice;
      // dQ of all queries is a part of what backward has; what a larger tile adds to it counts.
      const size_t most = std::max(kMostScratch, built_in.scratch + kMostScratch / 2);
      if (tile.scratch > most) one.rejected = join("needs ", tile.scratch, " bytes of scratch, more than ", most);
      all.add(std::move(one));
    }
  return all.sorted();
}

}  // namespace

std::vector<Candidate> candidates_of(const BenchPoint& p, const TuneTarget& target) {
  if (target.cpu) return cpu_candidates(p);
  if (p.direction == kForward) return near_plan(forward_plan(p, target, nullptr), target);
  if (p.direction == kBackward) return near_plan(backward_plan(p, target, nullptr), target);
  const cuda::CachePlan plan = cache_plan(p, target, nullptr);
  Collection all(target.arch);
  all.add_built_in(plan.config);
  add_neighbours(all, plan.config, p.heads_q / p.heads_k * p.len_q, plan.splits);
  return all.sorted();
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
