// Converts a tuner's choice to the config of a kernel, and back.
#pragma once

#include <span>
#include <utility>

#include "cuda/plan/limits.h"
#include "tuned/choice.h"

namespace cuflash::cuda {

// How a family's config can be tuned: the members that a choice sets, and which values are legal. All other members
// follow from the problem.
template <class Config>
struct Tunable {
  using Member = std::pair<int tuned::Choice::*, int Config::*>;

  const char* family;
  std::span<const Member> members;
  Limits (*limits)(const Config& config, const Arch& arch);
};

template <class Config>
tuned::Choice choice_of(const Tunable<Config>& tunable, const Config& config) {
  tuned::Choice choice{tunable.family};
  for (const auto& [chosen, member] : tunable.members) choice.*chosen = config.*member;
  return choice;
}

// Replaces the config by that of the choice and returns true, if the choice is for this family and legal.
template <class Config>
bool apply_tuned(const Tunable<Config>& tunable, const tuned::Choice* choice, const Arch& arch, Config& config) {
  if (!choice || choice->family != tunable.family) return false;
  Config wanted = config;
  for (const auto& [chosen, member] : tunable.members) wanted.*member = choice->*chosen;
  if (!is_legal(tunable.limits(wanted, arch))) return false;
  config = wanted;
  return true;
}

}  // namespace cuflash::cuda
