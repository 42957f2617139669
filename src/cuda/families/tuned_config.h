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
inline constexpr std::array<ChosenMember<Sm90ForwardConfig>, 4> kChosen<Sm90ForwardConfig>{
    {{&tuned::Choice::warpgroups, &Sm90ForwardConfig::warpgroups},
     {&tuned::Choice::tile_k, &Sm90ForwardConfig::tile_k},
     {&tuned::Choice::stages, &Sm90ForwardConfig::stages},
     {&tuned::Choice::order, &Sm90ForwardConfig::schedule}}};
template <>
inline constexpr std::array<ChosenMember<BackwardConfig>, 6> kChosen<BackwardConfig>{
    {{&tuned::Choice::tile_q, &BackwardConfig::tile_q},
     {&tuned::Choice::tile_k, &BackwardConfig::tile_k},
     {&tuned::Choice::key_warps, &BackwardConfig::key_warps},
     {&tuned::Choice::column_warps, &BackwardConfig::column_warps},
     {&tuned::Choice::stages, &BackwardConfig::stages},
     {&tuned::Choice::ctas_per_sm, &BackwardConfig::ctas_per_sm}}};
template <>
inline constexpr std::array<ChosenMember<Sm90BackwardConfig>, 2> kChosen<Sm90BackwardConfig>{
    {{&tuned::Choice::warpgroups, &Sm90BackwardConfig::warpgroups},
     {&tuned::Choice::stages, &Sm90BackwardConfig::stages}}};
template <>
inline constexpr std::array<ChosenMember<KvConfig>, 7> kChosen<KvConfig>{
    {{&tuned::Choice::tile_q, &KvConfig::tile_q},
     {&tuned::Choice::tile_k, &KvConfig::tile_k},
     {&tuned::Choice::row_warps, &KvConfig::row_warps},
     {&tuned::Choice::key_warps, &KvConfig::key_warps},
     {&tuned::Choice::column_warps, &KvConfig::column_warps},
     {&tuned::Choice::stages, &KvConfig::stages},
     {&tuned::Choice::ctas_per_sm, &KvConfig::ctas_per_sm}}};

constexpr tuned::Family family_of(const ForwardConfig&) { return tuned::Family::portable; }
constexpr tuned::Family family_of(const BackwardConfig&) { return tuned::Family::portable; }
constexpr tuned::Family family_of(const Sm90ForwardConfig&) { return tuned::Family::hopper; }
constexpr tuned::Family family_of(const Sm90BackwardConfig&) { return tuned::Family::hopper; }
constexpr tuned::Family family_of(const KvConfig& c) {
  return c.copy == kCopyTma ? tuned::Family::hopper : tuned::Family::portable;
}

template <class Config>
tuned::Choice choice_of(const Config& config) {
  tuned::Choice choice{family_of(config)};
  for (const auto& [chosen, member] : kChosen<Config>) choice.*chosen = config.*member;
  return choice;
}

// Whether a config becomes that of the choice, which must be one for its kernel without options, and legal.
template <class Config>
bool apply_tuned(const tuned::Choice* choice, const Arch& arch, Config& config) {
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
