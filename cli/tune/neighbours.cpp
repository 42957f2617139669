#include "cli/tune/neighbours.h"

#include <algorithm>

#include "support/text.h"

namespace cuflash::cli {

std::string reason_of(const cuda::Limits& l) {
  if (l.fault == cuda::Fault::shared_memory)
    return join("needs ", l.shared_bytes, " bytes of shared memory, there are ", l.max_shared_bytes);
  if (l.fault == cuda::Fault::registers)
    return join("needs about ", l.registers, " registers, there are ", l.max_registers);
  if (l.fault == cuda::Fault::crowded) return "its CTAs do not fit side by side into the shared memory";
  return "";
}

void Collection::add(Candidate candidate) {
  const auto same = [&](const Candidate& other) { return other.choice == candidate.choice; };
  if (std::none_of(all_.begin(), all_.end(), same)) all_.push_back(std::move(candidate));
}

std::vector<Candidate> Collection::sorted() {
  const tuned::Choice built_in = all_.front().choice;
  const auto distance = [&](const Candidate& candidate) {
    return std::count_if(tuned::kMembers.begin(), tuned::kMembers.end(), [&](const tuned::Member& member) {
      return candidate.choice.*member.value != built_in.*member.value;
    });
  };
  std::stable_sort(all_.begin() + 1, all_.end(),
                   [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
  return std::move(all_);
}

void add_splits(Collection& all, const cuda::KvPlan& plan) {
  if (plan.forward) return;  // a choice is that of the kernels over a cache
  const int64_t splits = plan.splits - plan.short_splits;
  for (const auto& [times, over] : {std::pair{1, 4}, {1, 2}, {3, 4}, {3, 2}, {2, 1}, {4, 1}}) {
    Candidate other{plan.family->choice(plan.launch.kernel), {}, false, ""};
    other.choice.splits = static_cast<int>(std::max<int64_t>(1, splits * times / over));
    if (other.choice.splits != splits) all.add(std::move(other));
  }
}

}  // namespace cuflash::cli
