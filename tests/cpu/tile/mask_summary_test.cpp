// The summary of a mask tensor, and the tiles that the CPU reads from either, against the tensor itself, pair by pair.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "check/cases/random.h"
#include "cpu/tile/summarize_mask.h"
#include "cpu/tile/tile_mask.h"
#include "tests/shared/guarded_bytes.h"

namespace cuflash::test {
namespace {

using check::Random;

struct Scene {
  const char* name;
  MaskShape shape;
  bool (*shown)(int64_t i, int64_t j, Random& random);
  int64_t gap = 0;  // bytes between rows
};

bool some_pairs(int64_t, int64_t, Random& random) { return random.below(10) < 7; }
bool documents(int64_t i, int64_t j, Random&) { return i / 70 == j / 70; }
bool all_pairs(int64_t, int64_t, Random&) { return true; }
bool no_pair(int64_t, int64_t, Random&) { return false; }
bool one_pair(int64_t i, int64_t j, Random&) { return i == 33 && j == 95; }
bool some_rows(int64_t i, int64_t, Random&) { return i % 40 < 20; }
bool block_columns(int64_t i, int64_t j, Random&) { return (i / 16 + j / 16) % 3 == 0; }

const Scene kScenes[] = {
    {"random", {2, 3, 100, 130}, some_pairs},       {"documents", {1, 1, 300, 700}, documents, 5},
    {"everything", {1, 2, 33, 1030}, all_pairs, 3}, {"nothing", {2, 1, 50, 64}, no_pair},
    {"one pair", {1, 1, 64, 513}, one_pair, 1},     {"rows", {1, 2, 90, 77}, some_rows, 11},
    {"blocks", {1, 1, 128, 528}, block_columns},    {"one row", {3, 1, 1, 1025}, some_pairs, 7},
    {"one key", {1, 1, 17, 1}, some_pairs},         {"one element", {1, 1, 1, 1}, all_pairs},
};

// The mask ends where memory does, so that a read beyond it fails.
struct Mask {
  const Scene& scene;
  GuardedBytes bytes;
  ConstRows rows;

  explicit Mask(const Scene& scene)
      : scene(scene),
        bytes(static_cast<size_t>((scene.shape.batch * scene.shape.heads * scene.shape.rows - 1) *
                                      (scene.shape.keys + scene.gap) +
                                  scene.shape.keys)) {
    const MaskShape& s = scene.shape;
    const int64_t row = s.keys + scene.gap;
    rows = {bytes.data(), DType::boolean, s.heads * s.rows * row, s.rows * row, row};
    Random random(7);
    std::fill_n(bytes.data(), bytes.size(), uint8_t{1});  // gaps must not count
    for (int64_t head = 0; head < s.batch * s.heads; ++head)
      for (int64_t i = 0; i < s.rows; ++i)
        for (int64_t j = 0; j < s.keys; ++j)
          bytes.data()[(head * s.rows + i) * row + j] =
              scene.shown(i, j, random) ? static_cast<uint8_t>(1 + j % 255) : 0;
  }
  bool shows(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return bytes.data()[rows.at(b, h, scene.shape.rows == 1 ? 0 : i) + j] != 0;
  }
  MaskVisibility visibility(int64_t b, int64_t h, int64_t i0, int64_t queries, int64_t j0, int64_t keys) const {
    bool any = false, all = true;
    const int64_t i1 = scene.shape.rows == 1 ? i0 + 1 : std::min(i0 + queries, scene.shape.rows);
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t j = j0; j < std::min(j0 + keys, scene.shape.keys); ++j)
        any |= shows(b, h, i, j), all &= shows(b, h, i, j);
    return !any ? MaskVisibility::none : all ? MaskVisibility::all : MaskVisibility::some;
  }
};

class MaskSummaries : public ::testing::TestWithParam<Scene> {};

TEST_P(MaskSummaries, SayWhatTheMaskSays) {
  const Mask mask(GetParam());
  const MaskShape& s = GetParam().shape;
  GuardedBytes memory(workspace_bytes(mask_summary_bytes(s)));
  const MaskSummary summary = mask_summary_at(s, memory.data());
  for (const int threads : {1, 3}) {
    std::fill_n(memory.data(), memory.size(), uint8_t{0xa5});
    cpu::summarize_mask({{}, mask.rows, s, summary}, Execution{.num_threads = threads});
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h) {
        const MaskOfHead of = mask_of_head(summary, static_cast<int>(b), static_cast<int>(h));
        for (int64_t i = 0; i < s.rows; ++i)
          for (int64_t j = 0; j < int64_t{s.keys + kMaskSpan - 1} / kMaskSpan * kMaskSpan; ++j) {
            const bool bit = (mask_row(of, static_cast<int>(i))[j / 32] >> j % 32 & 1) != 0;
            ASSERT_EQ(bit, j < s.keys && mask.shows(b, h, i, j)) << b << " " << h << " " << i << " " << j;
          }
      }
  }
}

TEST_P(MaskSummaries, JudgeTilesOfEverySize) {
  const Mask mask(GetParam());
  const MaskShape& s = GetParam().shape;
  GuardedBytes memory(workspace_bytes(mask_summary_bytes(s)));
  const MaskSummary summary = mask_summary_at(s, memory.data());
  cpu::summarize_mask({{}, mask.rows, s, summary}, Execution{});
  const int64_t queries_end = s.rows == 1 ? 40 : s.rows;
  for (const auto& [queries, keys] :
       {std::pair<int, int>{16, 16}, {64, 64}, {128, 80}, {32, 256}, {192, 176}, {16, 1024}})
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h) {
        const MaskOfHead of = mask_of_head(summary, static_cast<int>(b), static_cast<int>(h));
        for (int i = 0; i < queries_end; i += queries)
          for (int j = 0; j < s.keys; j += keys)
            ASSERT_EQ(mask_visibility(of, i, queries, j, keys), mask.visibility(b, h, i, queries, j, keys))
                << queries << " x " << keys << " at " << i << ", " << j;
      }
}

// Built-in tiles have a multiple of 64 keys; a tuned one may start within a word of the summary.
TEST_P(MaskSummaries, PanelsOfTilesShowWhatTheMaskShows) {
  const Mask mask(GetParam());
  const MaskShape& s = GetParam().shape;
  GuardedBytes memory(workspace_bytes(mask_summary_bytes(s)));
  const MaskSummary summary = mask_summary_at(s, memory.data());
  cpu::summarize_mask({{}, mask.rows, s, summary}, Execution{});
  Problem p;
  p.mask = mask.rows, p.mask_len_q = s.rows == 1 ? 40 : s.rows, p.mask_len_k = s.keys;
  if (s.rows == 1) p.mask.row_stride = 0;
  constexpr int64_t kLanes = 16, kQueries = 2 * kLanes;
  for (const bool summarized : {false, true})
    for (const int64_t tile_k : {16, 48, 64, 80}) {
      if (summarized) p.summary = summary;
      cpu::Arena measured(nullptr);
      cpu::TileMask(measured, p, kLanes, {kQueries, tile_k});
      GuardedBytes scratch(workspace_bytes(measured.used()));
      cpu::Arena arena(scratch.data());
      cpu::TileMask tile(arena, p, kLanes, {kQueries, tile_k});
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t h = 0; h < s.heads; ++h)
          for (int64_t i0 = 0; i0 < p.mask_len_q; i0 += kQueries)
            for (int64_t j0 = 0; j0 < s.keys; j0 += tile_k) {
              const Range queries{i0, std::min(i0 + kQueries, p.mask_len_q)}, keys{j0, std::min(j0 + tile_k, s.keys)};
              tile.load(p, b, h, queries, keys);
              for (int64_t i = i0; i < queries.end; ++i)
                for (int64_t j = j0; j < keys.end; ++j) {
                  const cpu::PanelMask& panel = tile.panel((i - i0) / kLanes * kLanes);
                  bool shown =
                      panel.visibility != MaskVisibility::none && j - j0 >= panel.keys.begin && j - j0 < panel.keys.end;
                  if (panel.words)
                    shown &= (panel.words[(j - j0) / 32 * kLanes + (i - i0) % kLanes] >> (j - j0) % 32 & 1) != 0;
                  ASSERT_EQ(shown, mask.shows(b, h, i, j))
                      << (summarized ? "summary" : "tensor") << " in tiles of " << tile_k << " keys: " << b << " " << h
                      << " " << i << " " << j;
                }
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Masks, MaskSummaries, ::testing::ValuesIn(kScenes), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

}  // namespace
}  // namespace cuflash::test
