// The scores of one query against a block of contiguous keys: every option of the spec for a row, as panel.h has for a
// panel.
#pragma once

#include <cstdint>

#include "cpu/isa/decode_tables.h"
#include "cpu/tile/panel.h"

namespace cuflash::cpu {

// A query of a head, and the keys of a block that it sees by lengths and window.
struct ScoreRow {
  const Head& head;
  int64_t query;
  Range keys;     // keys of the block
  Range visible;  // the part of keys that the query sees
};
ScoreRow score_row(const Problem& p, const Head& head, int64_t query, Range keys);

// Whether the query sees key j of the block, by position and by the mask tensor.
bool sees(const Problem& p, const ScoreRow& row, int64_t j);

// Turns s [key] = scale q . k into the final scores (steps 2 to 6 of the spec), -inf where the key is hidden. staging
// must hold a block.
template <class T>
void finish_scores(const Problem& p, const DecodeKernels<T>& kernels, const ScoreRow& row, T* s, T* staging);

// w [key] *= 0 or 1 / (1 - p).
template <class T>
void drop(const Problem& p, const ScoreRow& row, T* w);

}  // namespace cuflash::cpu
