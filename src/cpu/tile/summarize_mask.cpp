#include "cpu/tile/summarize_mask.h"

#include <algorithm>
#include <cstring>

#include "cpu/threads/threads.h"

namespace cuflash::cpu {
namespace {

// One bit for each of 8 bytes that is not 0, the first byte in the lowest bit.
uint32_t bits_of(uint64_t bytes) {
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7f, kHigh = ~kLow;
  const uint64_t nonzero = (((bytes & kLow) + kLow) | bytes) & kHigh;
  return static_cast<uint32_t>(((nonzero >> 7) * 0x0102040810204080) >> 56);
}

uint32_t bits_at(const uint8_t* bytes, int64_t count) {
  uint64_t eight = 0;
  std::memcpy(&eight, bytes, static_cast<size_t>(count));
  return bits_of(eight);
}

// The bits of a span of keys, for the rows of a block.
struct SpanOfBlock {
  uint32_t any[kMaskSpanWords] = {}, all[kMaskSpanWords], covers[kMaskSpanWords];

  SpanOfBlock() { std::fill(std::begin(all), std::end(all), ~0u); }
  void add(const uint32_t* row) {
    for (int w = 0; w < kMaskSpanWords; ++w) any[w] |= row[w], all[w] &= row[w];
  }
  // Keys beyond the end hide no pair.
  void end_at(int64_t keys) {
    for (int64_t w = 0; w < kMaskSpanWords; ++w) {
      const int64_t here = std::clamp<int64_t>(keys - 32 * w, 0, 32);
      covers[w] = any[w];
      if (here < 32) all[w] |= ~0u << here, covers[w] |= ~0u << here;
    }
  }
  static uint32_t blocks(const uint32_t* words, bool (*test)(uint32_t half)) {
    uint32_t bits = 0;
    for (int w = 0; w < kMaskSpanWords; ++w) {
      bits |= uint32_t{test(words[w] & 0xffff)} << 2 * w;
      bits |= uint32_t{test(words[w] >> 16)} << (2 * w + 1);
    }
    return bits;
  }
};

}  // namespace

void pack_mask(const uint8_t* bytes, int64_t keys, uint32_t* words, int64_t count) {
  for (int64_t w = 0; w < count; ++w, bytes += 32, keys -= 32) {
    uint32_t word = 0;
    if (keys >= 32) {
      for (int n = 0; n < 4; ++n) word |= bits_at(bytes + 8 * n, 8) << 8 * n;
    } else {
      for (int n = 0; n < 4 && 8 * n < keys; ++n)
        word |= bits_at(bytes + 8 * n, std::min<int64_t>(8, keys - 8 * n)) << 8 * n;
    }
    words[w] = word;
  }
}

void summarize_mask(const MaskProblem& p, const Execution& execution) {
  const auto& [memory, mask, shape, summary] = p;
  const int64_t block_rows = mask_block_rows(summary), tasks = shape.batch * shape.heads * block_rows;
  constexpr int64_t kBytesWorthWaking = 1 << 16;
  const int64_t useful = (Checked(tasks) * kMaskBlock * shape.keys).at_most(int64_t{1} << 40) / kBytesWorthWaking + 1;
  const int64_t workers = std::max<int64_t>(1, std::min({tasks, useful, int64_t{num_threads(execution)}}));
  run_tasks(execution, workers, tasks, [&](int64_t, int64_t task) {
    const int64_t head = task / block_rows, block = task % block_rows;
    const int64_t b = head / shape.heads, h = head % shape.heads;
    const int64_t row_words = int64_t{summary.spans} * kMaskSpanWords;
    const int64_t first = block * kMaskBlock, end = std::min(first + kMaskBlock, shape.rows);
    unsigned* words = summary.blocks + task * kMaskPlanes * summary.spans;
    for (int64_t span = 0; span < summary.spans; ++span) {
      SpanOfBlock seen;
      const int64_t key = span * kMaskSpan;
      for (int64_t row = first; row < end; ++row) {
        uint32_t* bits = summary.bits + (head * shape.rows + row) * row_words + span * kMaskSpanWords;
        pack_mask(static_cast<const uint8_t*>(mask.data) + mask.at(b, h, row) + key, shape.keys - key, bits,
                  kMaskSpanWords);
        seen.add(bits);
      }
      seen.end_at(shape.keys - key);
      words[span] = SpanOfBlock::blocks(seen.any, [](uint32_t half) { return half != 0; });
      constexpr auto kWhole = [](uint32_t half) { return half == 0xffff; };
      words[summary.spans + span] = SpanOfBlock::blocks(seen.all, kWhole);
      words[2 * summary.spans + span] = SpanOfBlock::blocks(seen.covers, kWhole);
    }
  });
}

}  // namespace cuflash::cpu
