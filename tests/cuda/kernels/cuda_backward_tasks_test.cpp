// The tasks of the sm90 backward kernel: together they visit every pair of a query tile and a key tile that see each
// other once, store every key tile, and leave no multiprocessor idle if there is enough work.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "cuda/families/params_backward.h"
#include "cuda/families/registry.h"
#include "cuda/plan/key_parts.h"
#include "cuda/plan/typical.h"
#include "tests/cuda/kernel_emulator/backward_tasks.h"

namespace cuflash::cuda {
namespace {

constexpr int kTileQ = 64;

// A problem with the memory that it points to. The tensors are never read.
struct Drawn {
  BackwardProblem problem;
  std::vector<int32_t> cu_q, cu_k, used_q, used_k;

  int64_t length(const std::vector<int32_t>& cu, const std::vector<int32_t>& used, int64_t most, size_t b) const {
    if (!used.empty()) return used[b];
    return cu.empty() ? most : cu[b + 1] - cu[b];
  }
  int64_t length_q(size_t b) const { return length(cu_q, used_q, problem.len_q, b); }
  int64_t length_k(size_t b) const { return length(cu_k, used_k, problem.len_k, b); }
};

BackwardProblem problem_of(int64_t batch, int64_t heads_q, int64_t heads_k, int64_t len_q, int64_t len_k, bool causal,
                           int64_t dim = 128) {
  return backward_of({.dtype = DType::bf16,
                      .dim_qk = dim,
                      .dim_v = dim,
                      .causal = causal,
                      .batch = batch,
                      .heads_q = heads_q,
                      .heads_k = heads_k,
                      .len_q = len_q,
                      .len_k = len_k});
}

std::unique_ptr<Drawn> draw(std::mt19937_64& random) {
  const auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  const auto chance = [&] { return between(0, 1) == 1; };
  auto drawn = std::make_unique<Drawn>();
  const int64_t batch = between(1, 6), heads_k = between(1, 3), group = chance() ? 1 : between(1, 9);
  const int64_t len_q = between(1, 1500), len_k = chance() ? len_q : between(1, 1500);
  const int64_t dims[] = {64, 128, 256};
  BackwardProblem& p = drawn->problem;
  p = problem_of(batch, heads_k * group, heads_k, len_q, len_k, chance(), dims[between(0, 2)]);
  if (between(0, 3) == 0) p.window_left = between(0, 500);
  if (between(0, 5) == 0) p.window_right = between(0, 500);
  p.top_left = between(0, 3) == 0;
  const auto lengths = [&](int64_t most) {
    std::vector<int32_t> all;
    for (int64_t b = 0; b < batch; ++b) all.push_back(static_cast<int32_t>(between(0, 5) == 0 ? 0 : between(0, most)));
    return all;
  };
  if (between(0, 2) == 0) {  // packed
    const auto sums = [&](int64_t most, std::vector<int32_t>& cu, int64_t& total) {
      cu.assign(1, 0);
      for (const int32_t length : lengths(most)) cu.push_back(cu.back() + length);
      total = cu.back() + between(0, 3);
    };
    sums(len_q, drawn->cu_q, p.total_q), sums(len_k, drawn->cu_k, p.total_k);
    p.cu_q = drawn->cu_q.data(), p.cu_k = drawn->cu_k.data();
  } else if (chance()) {
    drawn->used_q = lengths(len_q), drawn->used_k = lengths(len_k);
    p.used_q = drawn->used_q.data(), p.used_k = drawn->used_k.data();
  }
  return drawn;
}

std::vector<kernel_emulator::BackwardTask> tasks_of(const BackwardProblem& p, const BackwardPlan& plan) {
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(plan.workspace.size + 64);
  const auto start = (reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64;
  BackwardParams params = backward_params(p, plan, reinterpret_cast<void*>(start), nullptr);
  if (plan.pairs_tasks) params.last_paired_task = 2 * 132 - 1;  // with 132 CTAs
  return kernel_emulator::backward_tasks(&params, plan.tile_k);
}

// Whether some, and whether all, pairs of a tile of queries and a tile of keys see each other.
std::pair<bool, bool> tiles_see(const BackwardProblem& p, int64_t len_q, int64_t len_k, int64_t q_first,
                                int64_t k_first, int64_t tile_k) {
  const int64_t k_end = std::min(k_first + tile_k, len_k);
  bool some = false, all = k_first + tile_k <= len_k;
  for (int64_t i = q_first; i < std::min(q_first + kTileQ, len_q); ++i) {
    const int64_t at = i + (p.top_left ? 0 : len_k - len_q);
    const int64_t begin = p.window_left == kUnbounded ? k_first : std::max(k_first, at - p.window_left);
    const int64_t end = p.window_right == kUnbounded ? k_end : std::min(k_end, at + p.window_right + 1);
    some |= begin < end, all &= begin == k_first && end == k_end;
  }
  return {some, all};
}

TEST(BackwardTasks, VisitEveryPairOfTilesOnceAndStoreEveryKeyTile) {
  std::mt19937_64 random(1);
  int split = 0, own = 0, listed = 0;
  for (int n = 0; n < 150; ++n) {
    const auto drawn = draw(random);
    const BackwardProblem& p = drawn->problem;
    const auto reproducible = n % 3 == 0 ? Reproducible::yes : Reproducible::no;
    const BackwardPlan plan = plan_backward(p, arch_named("sm_90a"), reproducible, KernelPreference::best);
    ASSERT_EQ(plan.family, &sm90_backward);
    split += plan.parts.count() > 1, own += plan.parts.own_sums, listed += p.packed();
    const auto tasks = tasks_of(p, plan);
    std::map<std::tuple<int, int, int, int>, bool> visits;      // b, query head, query tile, first key: may be masked
    std::map<std::tuple<int, int, int>, std::set<int>> stores;  // b, KV head, first key: parts
    for (const auto& task : tasks) {
      const std::tuple stored{task.b, task.head_k, task.first_key};
      EXPECT_TRUE(stores[stored].insert(task.part).second);
      const int64_t len_k = p.packed() ? drawn->length_k(static_cast<size_t>(task.b)) : p.len_k;
      EXPECT_EQ(task.rows, std::min<int64_t>(plan.tile_k, len_k - task.first_key));
      EXPECT_EQ(task.first_head / p.group(), task.head_k);
      EXPECT_EQ((task.first_head + task.heads - 1) / p.group(), task.head_k);
      for (int h = 0; h < task.heads; ++h)
        for (size_t step = 0; step < task.query_tiles.size(); ++step) {
          const std::tuple visit{task.b, task.first_head + h, task.query_tiles[step], task.first_key};
          EXPECT_TRUE(visits.try_emplace(visit, task.may_be_masked[step]).second);
        }
    }
    for (int b = 0; b < p.batch; ++b) {
      const int64_t len_q = drawn->length_q(static_cast<size_t>(b)), len_k = drawn->length_k(static_cast<size_t>(b));
      for (int64_t k_first = 0; k_first < (p.packed() ? len_k : p.len_k); k_first += plan.tile_k) {
        const bool adds = plan.parts.count() > 1 && !plan.parts.own_sums;
        for (int h = 0; h < p.heads_k && !adds; ++h)
          EXPECT_EQ(stores[(std::tuple{b, h, static_cast<int>(k_first)})].size(),
                    static_cast<size_t>(plan.parts.count()));
        for (int64_t q_first = 0; q_first < len_q; q_first += kTileQ) {
          const auto [some, all] = tiles_see(p, len_q, len_k, q_first, k_first, plan.tile_k);
          for (int h = 0; h < p.heads_q && some; ++h) {
            const auto visit = visits.find({b, h, static_cast<int>(q_first / kTileQ), static_cast<int>(k_first)});
            ASSERT_NE(visit, visits.end()) << n;
            EXPECT_TRUE(all || visit->second) << n;
          }
        }
      }
    }
  }
  EXPECT_GT(split, 30);
  EXPECT_GT(own, 10);
  EXPECT_GT(listed, 30);
}

double length_of(const kernel_emulator::BackwardTask& task) {
  return task.heads * static_cast<double>(task.query_tiles.size());
}

// Tiles that each of 132 CTAs visits if they take tasks in this order, the longest time relative to the mean.
double imbalance(const std::vector<kernel_emulator::BackwardTask>& tasks) {
  std::multiset<double> busy;
  for (int n = 0; n < 132; ++n) busy.insert(0);
  double all = 0;
  for (const auto& task : tasks) {
    const double length = length_of(task);
    all += length;
    const double first = *busy.begin();
    busy.erase(busy.begin()), busy.insert(first + length);
  }
  return *busy.rbegin() * 132 / all;
}
// The imbalance of CTAs that take their next task when they begin one, as the kernel does. A task's beginning and end
// take as long as two query tiles.
double imbalance_with_claims_ahead(const std::vector<kernel_emulator::BackwardTask>& tasks) {
  constexpr size_t kCtas = 132;
  constexpr double kEnds = 2.2;
  std::multimap<double, size_t> begins;  // time, task
  size_t next = 0;
  for (; next < std::min(kCtas, tasks.size()); ++next) begins.emplace(0, next);
  double all = 0, end = 0;
  while (!begins.empty()) {
    const auto [time, task] = *begins.begin();
    begins.erase(begins.begin());
    const double length = length_of(tasks[task]) + kEnds;
    all += length, end = std::max(end, time + length);
    if (next < tasks.size()) begins.emplace(time + length, next++);
  }
  return end * kCtas / all;
}

TEST(BackwardTasks, GroupedHeadsAndFewSequencesFillTheMultiprocessors) {
  const auto planned = [](const BackwardProblem& p) {
    return imbalance(tasks_of(p, plan_backward(p, arch_named("sm_90a"), Reproducible::no, KernelPreference::best)));
  };
  EXPECT_LT(planned(problem_of(1, 32, 8, 8192, 8192, true)), 1.06);
  EXPECT_LT(planned(problem_of(1, 64, 8, 4096, 4096, true)), 1.06);
  EXPECT_LT(planned(problem_of(4, 16, 1, 4096, 4096, true)), 1.06);
  EXPECT_LT(planned(problem_of(1, 16, 1, 4096, 4096, true)), 1.10);
  EXPECT_LT(planned(problem_of(1, 4, 4, 2048, 2048, false)), 1.10);
}

TEST(BackwardTasks, FillTheMultiprocessorsThoughCtasHoldTwoOfThem) {
  const auto planned = [](const BackwardProblem& p) {
    return imbalance_with_claims_ahead(
        tasks_of(p, plan_backward(p, arch_named("sm_90a"), Reproducible::no, KernelPreference::best)));
  };
  for (const int64_t batch : {1, 2, 4, 8})
    EXPECT_LT(planned(problem_of(batch, 16, 16, 4096, 4096, true)), 1.03) << batch;
  EXPECT_LT(planned(problem_of(2, 16, 16, 8192, 8192, true)), 1.02);
  EXPECT_LT(planned(problem_of(1, 8, 8, 16384, 16384, true)), 1.02);
  EXPECT_LT(planned(problem_of(8, 16, 16, 2048, 2048, true)), 1.02);
  EXPECT_LT(planned(problem_of(4, 16, 16, 4096, 4096, true, 64)), 1.03);
}

TEST(BackwardTasks, SumsAreBounded) {
  for (const auto reproducible : {Reproducible::no, Reproducible::yes})
    for (const int64_t heads_k : {1, 8, 64})
      for (const int64_t length : {512, 4096, 65536}) {
        const BackwardProblem p = problem_of(2, heads_k * 16, heads_k, length, length, true);
        const BackwardPlan plan = plan_backward(p, arch_named("sm_90a"), reproducible, KernelPreference::best);
        const auto sums = static_cast<int64_t>(plan.workspace.size - plan.workspace.dk_accum);
        EXPECT_LE(static_cast<double>(sums), max_sum_bytes(p));
        EXPECT_EQ(sums != 0, plan.parts.count() > 1);
      }
}

TEST(BackwardTasks, PackedSequencesStartWithTheLongest) {
  std::vector<int32_t> cu{0, 100, 900, 1000, 2500};
  BackwardProblem p = problem_of(4, 16, 16, 1500, 1500, true);
  p.cu_q = p.cu_k = cu.data(), p.total_q = p.total_k = cu.back();
  const auto tasks = tasks_of(p, plan_backward(p, arch_named("sm_90a"), Reproducible::no, KernelPreference::best));
  EXPECT_EQ(tasks.front().b, 3);
  EXPECT_EQ(tasks.back().b, 2);
}

}  // namespace
}  // namespace cuflash::cuda
