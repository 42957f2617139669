// The summary of a mask tensor: one bit for each pair of a query and a key; for every block of 16 queries x 16 keys,
// whether the mask shows none, some or all of its pairs; and whether each key is visible to some query. It is made once
// and read instead of the tensor. Host and device share this layout.
//
// A row of blocks has 16 queries. Its keys are divided into spans of 512, each with a word of `any`, a word of `all`
// and a word of `covers`, one bit per block of 16 keys. A row of bits has 16 words per span. Pairs beyond the tensor
// are hidden in the bits, and ignored by the three block words. Where the mask repeats along the batch, the heads or
// the queries, the summary has extent 1.
#pragma once

#include "shared_function.h"

namespace cuflash {

constexpr int kMaskBlock = 16;                                    // queries and keys of a block
constexpr int kMaskSpan = 32 * kMaskBlock;                        // keys of a word of blocks
constexpr int kMaskSpanWords = kMaskSpan / 32;                    // words of bits of a span
constexpr int kMaskPlanes = 3;                                    // any, all, covers
enum class MaskVisibility : int { none = 0, some = 1, all = 2 };  // which pairs of a tile the mask shows

// The summary of every (batch, head), in device or host memory.
struct MaskSummary {
  unsigned* blocks;           // [head][row of blocks][plane][span]; null: there is no summary
  unsigned* bits;             // [head][row][span][kMaskSpanWords]: bit j % 32 of word j / 32 is key j
  int batch_step, head_step;  // the summary of (b, h) is number b * batch_step + h * head_step
  int rows;                   // 1: all queries share one row
  int spans;
};

CUFLASH_SHARED_FUNCTION int mask_block_rows(const MaskSummary& m) { return (m.rows + kMaskBlock - 1) / kMaskBlock; }

// The summary of one (batch, head).
struct MaskOfHead {
  const unsigned* blocks;
  const unsigned* bits;
  int rows, spans;
};

CUFLASH_SHARED_FUNCTION MaskOfHead mask_of_head(const MaskSummary& m, int b, int h) {
  const long long head = static_cast<long long>(b) * m.batch_step + static_cast<long long>(h) * m.head_step;
  return {m.blocks + head * mask_block_rows(m) * kMaskPlanes * m.spans,
          m.bits + head * m.rows * m.spans * kMaskSpanWords, m.rows, m.spans};
}

// The words of query i. For rows beyond the tensor it returns the last row; callers hide these by length.
CUFLASH_SHARED_FUNCTION const unsigned* mask_row(const MaskOfHead& m, int i) {
  const int row = i < m.rows ? i : m.rows - 1;
  return m.bits + static_cast<long long>(row) * m.spans * kMaskSpanWords;
}

// Blocks [first, end) of a word, end > first.
CUFLASH_SHARED_FUNCTION unsigned mask_block_range(int first, int end) { return (~0u >> (32 - (end - first))) << first; }

// Which pairs of queries [q_first, q_first + queries) and keys [k_first, k_first + keys) the mask shows. q_first and
// k_first are multiples of 16; pairs beyond the tensor are ignored.
CUFLASH_SHARED_FUNCTION MaskVisibility mask_visibility(const MaskOfHead& m, int q_first, int queries, int k_first,
                                                       int keys) {
  const int block_rows = (m.rows + kMaskBlock - 1) / kMaskBlock;
  const int row_begin = m.rows == 1 ? 0 : q_first / kMaskBlock;
  const int row_wanted = m.rows == 1 ? 1 : (q_first + queries + kMaskBlock - 1) / kMaskBlock;
  const int row_end = row_wanted < block_rows ? row_wanted : block_rows;
  const int begin = k_first / kMaskBlock, wanted = (k_first + keys + kMaskBlock - 1) / kMaskBlock;
  const int end = wanted < 32 * m.spans ? wanted : 32 * m.spans;
  unsigned any = 0, hidden = 0;
  for (int span = begin / 32; span * 32 < end; ++span) {
    const int first = begin > span * 32 ? begin - span * 32 : 0, last = end < span * 32 + 32 ? end - span * 32 : 32;
    const unsigned range = mask_block_range(first, last);
    for (int row = row_begin; row < row_end; ++row) {
      const unsigned* words = m.blocks + static_cast<long long>(row) * kMaskPlanes * m.spans + span;
      any |= words[0] & range;
      hidden |= ~words[m.spans] & range;
    }
  }
  return any == 0 ? MaskVisibility::none : hidden == 0 ? MaskVisibility::all : MaskVisibility::some;
}

}  // namespace cuflash
