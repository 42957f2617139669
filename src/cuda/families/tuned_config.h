// Choices of a tuner as configs of kernels, and the other way round.
#pragma once

#include <array>
#include <utility>

#include "cuda/families/limits.h"
#include "tuned/choice.h"

namespace cuflash::cuda {

template <class Config>
using ChosenMember = std::pair<int tuned::Choice::*, int Config::*>;

// Which members of a config are chosen; the others follow from the problem.
template <class Config>
inline constexpr std::array<ChosenMember<Config>, 0> kChosen{};
template <>
inline constexpr std::array<ChosenMember<ForwardConfig>, 6> kChosen<ForwardConfig>{
    {{&tuned::Choice::tile_q, &ForwardConfig::tile_q},
     {&tuned::Choice::tile_k, &ForwardConfig::tile_k},
     {&tuned::Choice::row_warps, &ForwardConfig::row_warps},
     {&tuned::Choice::column_warps, &ForwardConfig::column_warps},
     {&tuned::Choice::stages, &ForwardConfig::stages},
     {&tuned::Choice::ctas_per_sm, &ForwardConfig::ctas_per_sm}}};
template <>
inline constexpr std::array<ChosenMember<HopperForwardConfig>, 4> kChosen<HopperForwardConfig>{
    {{&tuned::Choice::warpgroups, &HopperForwardConfig::warpgroups},
     {&tuned::Choice::tile_k, &HopperForwardConfig::tile_k},
     {&tuned::Choice::stages, &HopperForwardConfig::stages},
     {&tuned::Choice::order, &HopperForwardConfig::order}}};
template <>
inline constexpr std::array<ChosenMember<BackwardConfig>, 6> kChosen<BackwardConfig>{
    {{&tuned::Choice::tile_q, &BackwardConfig::tile_q},
     {&tuned::Choice::tile_k, &BackwardConfig::tile_k},
     {&tuned::Choice::key_warps, &BackwardConfig::key_warps},
     {&tuned::Choice::column_warps, &BackwardConfig::column_warps},
     {&tuned::Choice::stages, &BackwardConfig::stages},
     {&tuned::Choice::ctas_per_sm, &BackwardConfig::ctas_per_sm}}};
template <>
inline constexpr std::array<ChosenMember<HopperBackwardConfig>, 2> kChosen<HopperBackwardConfig>{
    {{&tuned::Choice::warpgroups, &HopperBackwardConfig::warpgroups},
     {&tuned::Choice::stages, &HopperBackwardConfig::stages}}};
template <>
inline constexpr std::array<ChosenMember<CacheConfig>, 7> kChosen<CacheConfig>{
    {{&tuned::Choice::tile_q, &CacheConfig::tile_q},
     {&tuned::Choice::tile_k, &CacheConfig::tile_k},
     {&tuned::Choice::row_warps, &CacheConfig::row_warps},
     {&tuned::Choice::key_warps, &CacheConfig::key_warps},
     {&tuned::Choice::column_warps, &CacheConfig::column_warps},
     {&tuned::Choice::stages, &CacheConfig::stages},
     {&tuned::Choice::ctas_per_sm, &CacheConfig::ctas_per_sm}}};

constexpr tuned::Family family_of(const ForwardConfig&) { return tuned::Family::portable; }
constexpr tuned::Family family_of(const BackwardConfig&) { return tuned::Family::portable; }
constexpr tuned::Family family_of(const HopperForwardConfig&) { return tuned::Family::hopper; }
constexpr tuned::Family family_of(const HopperBackwardConfig&) { return tuned::Family::hopper; }
constexpr tuned::Family family_of(const CacheConfig& c) {
  return c.copy == kCopyBoxes ? tuned::Family::hopper : tuned::Family::portable;
}

template <class Config>
tuned::Choice choice_of(const Config& config) {
  tuned::Choice choice{family_of(config)};
  for (const auto& [chosen, member] : kChosen<Config>) choice.*chosen = config.*member;
  return choice;
}

// Whether a config becomes that of the choice, which must be one for its kernel without options, and legal.
template <class Config>
bool take(const tuned::Choice* choice, const Arch& arch, Config& config) {
  if (!choice || choice->family != family_of(config)) return false;
  if constexpr (requires { config.options; })
    if (config.options != 0) return false;
  Config wanted = config;
  for (const auto& [chosen, member] : kChosen<Config>) wanted.*member = choice->*chosen;
  if (!is_legal(wanted, arch)) return false;
  config = wanted;
  return true;
}

}  // namespace cuflash::cuda
