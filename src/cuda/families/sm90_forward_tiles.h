// Tiles of the sm90 forward family for a problem and its options.
#pragma once

#include "checked.h"
#include "config.h"
#include "cuda/plan/limits.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// How many registers, and how much shared memory, the options of a call need; in ascending order.
enum class RegisterNeeds {
  plain,       // no options
  fixed_max,   // only softcap, in a softmax without a row maximum
  arithmetic,  // softcap or ALiBi, or a scale that is not folded: a few registers
  dropout,     // dropout, or softcap and ALiBi together: more registers
  mask,        // a mask tensor: the registers of dropout, and a little shared memory
  one_tile,    // a bias in shared memory, or softcap, ALiBi and dropout together
  everything,  // bias and mask, dropout with either, or a bias that consumers load
};

RegisterNeeds needs_of(const Sm90ForwardConfig& config);

struct ForwardTiles {
  int warpgroups, tile_k, stages, schedule;
};
inline constexpr int kStagedStore = kPingPong | kPinWait | kStoreBySmem;

// Chooses the tiles of a config that is otherwise complete.
ForwardTiles tiles_for(const ForwardProblem& problem, const Sm90ForwardConfig& config, int num_sms);

// Gives a config the tiles of 64 queries for short sequences, of which several CTAs share an SM, if they keep more
// warpgroups of an SM busy than the config's own. limits: those of a config.
void take_short_tiles(Sm90ForwardConfig& config, const ForwardProblem& problem, const Arch& arch, int num_sms,
                      Limits (*limits)(const Sm90ForwardConfig& config, const Arch& arch));
// Sets the fields of a config with several CTAs per SM that follow from the problem.
void fit_to_sequences(Sm90ForwardConfig& config, const ForwardProblem& problem);

// packed: heads of a group that are rows of one tile.
Checked query_tiles(const Problem& problem, int tile_q, int64_t packed = 1);

}  // namespace cuflash::cuda
