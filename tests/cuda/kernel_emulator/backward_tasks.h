// The tasks that the backward kernel of sm_90a takes one after the other, by its own code on the host.
#pragma once

#include <vector>

namespace kernel_emulator {

struct BackwardTask {
  int b, head_k, part;
  int first_key, rows;              // first key of the key tile; number of rows that are stored
  int first_head, heads;            // query heads
  std::vector<int> query_tiles;     // tiles of 64 queries that are visited for every head, in order
  std::vector<bool> may_be_masked;  // for each of them
};

// params: a BackwardParams in host memory, whose workspace is there, too. tile_k: 64, 128 or 192.
std::vector<BackwardTask> backward_tasks(const void* params, int tile_k);

}  // namespace kernel_emulator
