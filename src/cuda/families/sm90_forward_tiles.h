// Tiles of the sm90 forward family for a problem and its options.
#pragma once

#include "checked.h"
#include "config.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// What the options of a call take from a tile.
enum class RegisterNeeds {
  plain,       // no options
  fixed_max,   // softcap alone, in a softmax without a row maximum
  arithmetic,  // softcap or ALiBi, a scale of its own: a few registers
  dropout,     // or softcap and ALiBi: more registers
  mask,        // a mask tensor: as dropout, and a little shared memory
  one_tile,    // a bias in shared memory, or softcap, ALiBi and dropout together
  everything,  // both, dropout beside one, or loads of a bias by consumers
};

RegisterNeeds needs_of(const Sm90ForwardConfig& config);

struct ForwardTiles {
  int warpgroups, tile_k, stages, schedule;
};
inline constexpr int kStagedStore = kPingPong | kPinWait | kStoreBySmem;

// Chooses the tiles of a config that is otherwise complete.
ForwardTiles tiles_for(const ForwardProblem& problem, const Sm90ForwardConfig& config, int num_sms);

// packed: heads of a group that are rows of one tile.
Checked query_tiles(const Problem& problem, int tile_q, int64_t packed = 1);

}  // namespace cuflash::cuda
