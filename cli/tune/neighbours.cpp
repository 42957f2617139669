#include "cli/tune/neighbours.h"

#include <algorithm>

#include "support/text.h"

namespace cuflash::cli {

namespace {

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

// Kernels whose CTAs only just fit the registers usually spill; fewer CTAs leave room.
template <class Config>
void add_with(int ctas, Config c, std::vector<Config>& configs, const cuda::Arch& arch) {
  constexpr int kRoom = 12;
  c.ctas_per_sm = ctas;
  const cuda::Limits limits = limits_of(c, arch);
  if (ctas == 1 || limits.registers + kRoom <= limits.registers_most) configs.push_back(c);
}

}  // namespace

std::string reason_of(const cuda::Limits& l) {
  if (l.fault == cuda::Fault::shared_memory)
    return join("needs ", l.shared_bytes, " bytes of shared memory, there are ", l.shared_most);
  if (l.fault == cuda::Fault::registers)
    return join("needs about ", l.registers, " registers, there are ", l.registers_most);
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

void add_neighbours(Collection& all, const Sm90ForwardConfig& built_in) {
  constexpr int kPlain = kPingPong | kPinWait;
  const auto with_stages = [](Sm90ForwardConfig c) {
    std::vector<Sm90ForwardConfig> configs;
    for (const int stages : {4, 3, 2}) c.stages = stages, configs.push_back(c);
    return configs;
  };
  for (const Sm90ForwardConfig& one : with_stages(built_in)) all.add_first<Sm90ForwardConfig>({one});
  for (const int flag : {int{kPingPong}, int{kPinWait}, int{kStoreBySmem}, int{kPrefetchQ}}) {
    Sm90ForwardConfig c = built_in;
    c.schedule ^= flag;
    all.add_first(with_stages(c));
  }
  for (const int warpgroups : {2, 3, 4})
    for (int tile_k = 48; tile_k <= 176; tile_k += 16)
      for (const int order : {built_in.schedule, kPlain}) {
        Sm90ForwardConfig c = built_in;
        c.warpgroups = warpgroups, c.tile_k = tile_k, c.schedule = order;
        all.add_first(with_stages(c));
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

void add_neighbours(Collection& all, const Sm90BackwardConfig& built_in) {
  Sm90BackwardConfig c = built_in;
  for (const int warpgroups : {1, 2, 3})
    for (const int stages : {2, 3, 4}) {
      c.warpgroups = warpgroups, c.stages = stages;
      all.add_first<Sm90BackwardConfig>({c});
    }
}

void add_neighbours(Collection& all, const KvConfig& built_in, int64_t rows, int64_t splits) {
  // The number of splits matters more than the tile.
  for (const auto& [times, over] : {std::pair{1, 4}, {1, 2}, {3, 4}, {3, 2}, {2, 1}, {4, 1}}) {
    Candidate other{cuda::choice_of(built_in), {}, false, ""};
    other.choice.splits = static_cast<int>(std::max<int64_t>(1, splits * times / over));
    if (other.choice.splits != splits) all.add(std::move(other));
  }
  KvConfig c = built_in;
  for (const int tile_q : {16, 32, 64, 128, 256})
    for (const int tile_k : {16, 32, 64, 128})
      for (const int key_warps : {1, 2, 4, 8})
        for (const int column_warps : {1, 2, 4})
          for (const int ctas : {1, 2, 3}) {
            if (tile_q > 16 && rows <= tile_q / 2) continue;
            c.tile_q = tile_q, c.row_warps = std::min(tile_q / 16, 8), c.tile_k = tile_k;
            c.key_warps = key_warps, c.column_warps = column_warps, c.ctas_per_sm = ctas;
            if (tile_q > kWarpgroupRows && !by_warpgroups(c)) continue;  // untested
            const int warps = c.row_warps * key_warps * column_warps;
            if (warps < 4 || warps > 8) continue;  // fewer warps keep too few copies in flight
            std::vector<KvConfig> configs;
            // A CTA that is alone on its multiprocessor has room for more stages.
            for (const int stages : {8, 6, 4, 3, 2})
              if (stages <= 4 || (ctas == 1 && c.copy == kCopyTma)) c.stages = stages, configs.push_back(c);
            all.add_first(configs);
          }
}

}  // namespace cuflash::cli
