#include "tests/api/misuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>

#include "tests/problem/rejections_cache.h"
#include "tests/problem/rejections_merge.h"

namespace cuflash::rejections {
namespace {

Target target_of(const Sizes& sizes) {
  auto call = std::make_shared<Call>(sizes);
  const char* modes[] = {"dense", "padded", "packed"};
  Target t{std::string(name_of(sizes.direction)) + " " + modes[static_cast<int>(sizes.mode)], call, call->slots()};
  t.run = [=] { return call->run(); };
  t.workspace_size = [=](size_t* bytes) { return call->workspace_size(bytes); };
  t.explain = [=](char* text, size_t capacity, size_t* needed) { return call->explain(text, capacity, needed); };
  t.untouched = [=] { return call->outputs_untouched(); };
  t.scratch = [=](size_t bytes) { return call->scratch(bytes); };
  t.attention = &call->attention, t.execution = &call->execution;
  return t;
}

Target target_of(const CacheKind& kind) {
  auto call = std::make_shared<CacheCall>(kind);
  Target t{"attend_cache " + describe(kind), call, call->slots()};
  // A cache that is only read is an input.
  if (!call->appends())
    for (Slot& slot : t.slots)
      if (slot.name == "k" || slot.name == "v") slot.is_output = false;
  t.run = [=] { return call->run(); };
  t.workspace_size = [=](size_t* bytes) { return call->workspace_size(bytes); };
  t.explain = [=](char* text, size_t capacity, size_t* needed) {
    return cuflash_explain_attend_cache(&call->attention, &call->cache, &call->execution, text, capacity, needed);
  };
  t.untouched = [=] { return call->outputs_untouched(); };
  t.scratch = [=](size_t bytes) { return call->scratch(bytes); };
  t.attention = &call->attention, t.execution = &call->execution;
  return t;
}

Target merge_target(bool packed) {
  struct Owner {
    explicit Owner(bool packed) : call(DType::f32, packed) {}

    MergeCall call;
    std::list<std::vector<std::byte>> memory;
  };
  auto owner = std::make_shared<Owner>(packed);
  Target t{packed ? "merge packed" : "merge dense", owner, owner->call.slots()};
  t.run = [=] { return owner->call.run(); };
  t.untouched = [=] { return owner->call.untouched(); };
  t.scratch = [=](size_t bytes) { return owner->memory.emplace_back(bytes).data(); };
  return t;
}

}  // namespace

const Slot* Target::find(const std::string& slot) const {
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.name == slot; });
  return found == slots.end() ? nullptr : &*found;
}

size_t bytes_of(const Slot& slot) {
  int64_t elements = 1;
  for (int d = 0; d < *slot.rank; ++d) elements *= slot.shape[d];
  return static_cast<size_t>(elements * size_of(slot.type()));
}

std::byte* Target::move(const Slot& slot, size_t room) {
  std::byte* memory = scratch(room);
  std::memcpy(memory, slot.data, bytes_of(slot));
  slot.set_data(memory);
  untouched = [rest = untouched, memory, before = std::vector<std::byte>(memory, memory + room)] {
    return rest() && std::equal(before.begin(), before.end(), memory);
  };
  return memory;
}

std::vector<MakeTarget> all_targets() {
  std::vector<MakeTarget> all;
  for (const Direction direction : {Direction::forward, Direction::backward})
    for (const Mode mode : {Mode::dense, Mode::padded, Mode::packed})
      all.push_back([=] { return target_of(Sizes{.direction = direction, .mode = mode}); });
  for (const CacheKind& kind : {CacheKind{.queries = Mode::padded, .new_rows = NewRows::none},
                                CacheKind{.queries = Mode::dense, .new_rows = NewRows::dense},
                                CacheKind{.queries = Mode::padded, .new_rows = NewRows::padded, .paged = true},
                                CacheKind{.queries = Mode::packed, .new_rows = NewRows::packed, .paged = true}})
    all.push_back([=] { return target_of(kind); });
  for (const bool packed : {false, true}) all.push_back([=] { return merge_target(packed); });
  return all;
}

void Misuse::everywhere(const std::string& what, const Break& broken) {
  for (const MakeTarget& make : all_targets()) {
    Target target = make();
    const std::optional<Refusal> expected = broken(target);
    if (!expected) continue;
    const auto why_not = [&](const char* function, cuflash_status status) {
      return why_not_refused(target.untouched(), *expected, function, status);
    };
    std::string failure;
    if (target.workspace_size) {
      size_t bytes = 12345, needed = 12345;
      char text[8] = "before";
      failure = why_not("the workspace query", target.workspace_size(&bytes));
      if (failure.empty()) failure = why_not("explain", target.explain(text, sizeof text, &needed));
      if (bytes != 12345 || needed != 12345 || text != std::string("before")) failure += " a refused query wrote";
    }
    if (failure.empty()) failure = why_not("the call", target.run());
    check(target.name + ": " + what, failure);
  }
}

void Misuse::calls(const std::string& what, const Break& broken) {
  for (const MakeTarget& make : all_targets()) {
    Target target = make();
    const std::optional<Refusal> expected = broken(target);
    if (!expected) continue;
    const cuflash_status status = target.run();
    check(target.name + ": " + what, why_not_refused(target.untouched(), *expected, "the call", status));
  }
}

void Misuse::check(const std::string& name, const std::string& failure) {
  EXPECT_EQ(failure, "") << name;
  EXPECT_EQ(std::count(names_.begin(), names_.end(), name), 0) << name << " is there twice";
  names_.push_back(name);
}

}  // namespace cuflash::rejections
