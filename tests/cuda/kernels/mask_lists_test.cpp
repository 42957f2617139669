// The lists of tiles that a mask tensor shows to the sm90 kernels, and the bits of such a tile, on the host. The lists of
// forward also run with its kernel in fake_gpu_forward_test.
#include <algorithm>
#include <vector>

#include "backward_params.h"
#include "check/cases/random.h"
#include "cpu/tile/summarize_mask.h"
#include "cuda/families/params_forward.h"
#include "cuda/plan/mask_lists.h"
#include "problem/describe.h"
#include "problem/mask_shape.h"
#include "tests/cuda/kernel_emulator/mask_lists.h"
#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

using check::Random;

struct Scene {
  int64_t batch, heads_q, heads_k, queries, keys;
  bool by_batch, by_head, by_query;  // extents of the mask
  bool causal;
  int64_t block;  // queries and keys that are shown or hidden together; documents of that length if negative
};

bool listed_all(int word, int group) { return (word >> (24 + group) & 1) != 0; }

struct Problems {
  Inputs in;
  std::vector<uint8_t> mask;
  std::vector<unsigned> words;
  Problem p;
  Scene s;

  explicit Problems(const Scene& s)
      : in(dense({.batch = s.batch,
                  .heads_q = s.heads_q,
                  .heads_k = s.heads_k,
                  .len_q = s.queries,
                  .len_k = s.keys,
                  .dim = 8,
                  .dim_v = 8,
                  .dtype = DType::bf16})),
        s(s) {
    const int64_t batch = s.by_batch ? s.batch : 1, heads = s.by_head ? s.heads_q : 1,
                  rows = s.by_query ? s.queries : 1;
    mask.resize(static_cast<size_t>(batch * heads * rows * s.keys));
    size_t n = 0;
    for (int64_t head = 0; head < batch * heads; ++head)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < s.keys; ++j, ++n) mask[n] = shows(head, i, j);
    in.attention.mask = contiguous(std::as_const(mask).data(), DType::boolean, batch, heads, rows, s.keys);
    in.attention.causal = s.causal;
    Snapshot copies;
    Buffer o(in.dout.view());
    p = describe(detail::to_c(in.attention), detail::to_c(ForwardOutputs{.o = o.view()}), Memory{0}, copies);
    const MaskShape shape = mask_shape_of(p);
    words.resize(workspace_bytes(mask_summary_bytes(shape)) / sizeof(unsigned));
    p.summary = mask_summary_at(shape, words.data());
    cpu::summarize_mask({{}, p.mask, shape, p.summary}, Execution{.num_threads = 1});
  }
  bool shows(int64_t head, int64_t i, int64_t j) const {
    if (s.block < 0) return i / -s.block == j / -s.block;
    return Random(static_cast<uint64_t>((head * 100 + i / s.block) * 100 + j / s.block)).below(3) == 0;
  }
  bool shown(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t heads = s.by_head ? s.heads_q : 1, rows = s.by_query ? s.queries : 1;
    const int64_t head = (s.by_batch ? b * heads : 0) + (s.by_head ? h : 0);
    return mask[static_cast<size_t>((head * rows + (s.by_query ? i : 0)) * s.keys + j)] != 0;
  }
  bool seen(int64_t i, int64_t j) const { return !s.causal || j <= i + s.keys - s.queries; }

  // Which pairs of a tile are visible: by mask alone, and by mask and position.
  struct Tile {
    bool shows_any = false, shows_all = true, any = false, all = true;
    bool visited() const { return any && shows_any; }
  };
  Tile tile(int64_t b, int64_t h, int64_t i0, int64_t queries, int64_t j0, int64_t keys) const {
    Tile t;
    for (int64_t i = i0; i < std::min(i0 + queries, s.queries); ++i)
      for (int64_t j = j0; j < std::min(j0 + keys, s.keys); ++j) {
        const bool by_mask = shown(b, h, i, j), by_position = seen(i, j);
        t.shows_any |= by_mask, t.shows_all &= by_mask, t.any |= by_position, t.all &= by_position;
      }
    return t;
  }
};

constexpr Scene kScenes[] = {
    {2, 4, 2, 300, 700, true, false, true, false, 64},     {2, 4, 2, 300, 700, false, true, true, true, 32},
    {1, 2, 1, 500, 500, false, false, true, true, -90},    {2, 2, 2, 130, 260, true, true, false, false, 16},
    {1, 1, 1, 40, 2300, false, false, true, false, -90},   {1, 1, 1, 2300, 100, false, false, true, true, 128},
    {1, 2, 1, 1300, 1300, false, false, true, true, -400}, {1, 1, 1, 60, 3000, false, false, true, false, 96},
};

TEST(MaskLists, HaveTheQueryTilesOfEveryKeyTile) {
  for (const Scene& s : kScenes) {
    SCOPED_TRACE(::testing::Message() << s.queries << " x " << s.keys << " blocks of " << s.block);
    const Problems problem(s);
    const cuda::MaskListExtent extent{s.heads_k, (s.keys + 127) / 128, (s.queries + 63) / 64};
    std::vector<int> data(cuda::mask_list_bytes(problem.p, extent) / sizeof(int), -1);
    uint64_t counts[3] = {}, counted[3] = {};
    Sm90BackwardParams params{};
    params.backward.attention = cuda::attention_params(problem.p, counts);
    const MaskLists lists = params.backward.mask_lists = cuda::mask_lists(problem.p, extent, data.data());
    kernel_emulator::list_query_tiles(&params, static_cast<int64_t>(data.size()) / lists.stride);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads_k; ++h)
        for (int64_t key_tile = 0; key_tile < extent.tiles; ++key_tile) {
          const int* list =
              data.data() + ((b * lists.batch_step + h * lists.head_step) * lists.tiles + key_tile) * lists.stride;
          std::vector<int> expected;
          const int64_t group = s.heads_q / s.heads_k;
          for (int64_t q_tile = 0; q_tile < extent.longest; ++q_tile) {
            bool visited = false, all[2] = {true, true};
            for (int64_t head = h * group; head < (h + 1) * group; ++head) {
              const auto whole = problem.tile(b, head, q_tile * 64, 64, key_tile * 128, 128);
              visited |= whole.visited();
              counted[whole.visited() ? 0 : 2] += 1, counted[1] += whole.visited() && !(whole.all && whole.shows_all);
              for (int g = 0; g < 2; ++g)
                all[g] &= problem.tile(b, head, q_tile * 64, 64, key_tile * 128 + 64 * g, 64).shows_all;
            }
            if (visited) expected.push_back(static_cast<int>(q_tile) | all[0] << 24 | all[1] << 25);
          }
          ASSERT_EQ(list[0], static_cast<int>(expected.size())) << b << " " << h << " " << key_tile;
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), list + kMaskListHeader)) << key_tile;
        }
    EXPECT_TRUE(std::equal(counts, counts + 3, counted)) << counts[0] << " " << counts[1] << " " << counts[2];
  }
}

TEST(MaskLists, HaveTheKeyTilesOfEveryQueryTile) {
  for (const Scene& s : kScenes) {
    SCOPED_TRACE(::testing::Message() << s.queries << " x " << s.keys << " blocks of " << s.block);
    const Problems problem(s);
    const cuda::MaskListExtent extent{s.heads_q, (s.queries + 127) / 128, (s.keys + 63) / 64, true};
    std::vector<int> data(cuda::mask_list_bytes(problem.p, extent) / sizeof(int), -1);
    uint64_t counts[3] = {}, counted[3] = {};
    Sm90BackwardParams params{};
    params.backward.attention = cuda::attention_params(problem.p, counts);
    params.counts_in_dq = 1;
    const MaskLists lists = params.dq_mask_lists = cuda::mask_lists(problem.p, extent, data.data());
    kernel_emulator::list_key_tiles_for_dq(&params, static_cast<int64_t>(data.size()) / lists.stride);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads_q; ++h)
        for (int64_t q_tile = 0; q_tile < extent.tiles; ++q_tile) {
          const int* list =
              data.data() + ((b * lists.batch_step + h * lists.head_step) * lists.tiles + q_tile) * lists.stride;
          const int count = list[0];
          int found = 0, begin[2] = {}, end[2] = {};
          for (int64_t key_tile = extent.longest - 1; key_tile >= 0; --key_tile) {
            const auto whole = problem.tile(b, h, q_tile * 128, 128, key_tile * 64, 64);
            bool hides_key = false, block_seen[4] = {}, block_hides[4] = {};
            for (int64_t j = key_tile * 64; j < std::min(key_tile * 64 + 64, s.keys); ++j) {
              bool is_seen = false, by_position = false;
              for (int64_t i = q_tile * 128; i < std::min(q_tile * 128 + 128, s.queries); ++i) {
                is_seen |= problem.seen(i, j) && problem.shown(b, h, i, j);
                by_position |= problem.seen(i, j);
              }
              hides_key |= !is_seen;
              block_seen[j % 64 / 16] |= is_seen, block_hides[j % 64 / 16] |= by_position && !is_seen;
            }
            const int word = found < count ? list[kMaskListHeader + found] : -1, place = count - 1 - found;
            for (int g = 0; g < 2; ++g) {
              if (q_tile * 128 + 64 * g >= s.queries) continue;
              const auto of_group = problem.tile(b, h, q_tile * 128 + 64 * g, 64, key_tile * 64, 64);
              counted[of_group.visited() ? 0 : 2] += 1;
              counted[1] += of_group.visited() && !(of_group.all && of_group.shows_all);
              if (!whole.visited()) continue;
              EXPECT_EQ(listed_all(word, g), of_group.shows_all);
              if (!of_group.visited()) continue;
              begin[g] = place;
              if (end[g] == 0) end[g] = place + 1;
            }
            if (!whole.visited()) continue;
            // Values of a block that is not seen are zeroed, and those of one that may hide a key are searched.
            const auto blocks = static_cast<unsigned>(list[lists.blocks + found]);
            for (int n = 0; n < 4; ++n) {
              const bool is_seen = (blocks >> n & 1) != 0, may_hide = (blocks >> (8 + n) & 1) != 0;
              EXPECT_TRUE(is_seen || !block_seen[n]) << key_tile << " " << n;
              EXPECT_TRUE(!is_seen || may_hide || !block_hides[n]) << key_tile << " " << n;
              EXPECT_TRUE(!may_hide || !whole.shows_all) << key_tile << " " << n;
            }
            ++found;
            ASSERT_EQ(word & 0xffffff, key_tile);
            // The flag may be set where no key is hidden, but not in tiles that are shown as a whole.
            EXPECT_TRUE(!hides_key || word < 0) << key_tile;
            EXPECT_TRUE(!whole.all || !whole.shows_all || word >= 0) << key_tile;
          }
          ASSERT_EQ(found, count) << b << " " << h << " " << q_tile;
          for (int g = 0; g < 2; ++g) {
            EXPECT_EQ(list[1 + 2 * g], begin[g]) << q_tile << " " << g;
            EXPECT_EQ(list[2 + 2 * g], end[g]) << q_tile << " " << g;
          }
        }
    EXPECT_TRUE(std::equal(counts, counts + 3, counted)) << counts[0] << " " << counts[1] << " " << counts[2];
  }
}

// A tile of up to three warpgroups, where the mask decides which groups of 64 queries form a tile.
struct AlignedTile {
  int64_t first, groups;
  const int* list;
};
std::vector<AlignedTile> aligned_tiles(const std::vector<int>& data, const MaskLists& lists, int64_t b) {
  std::vector<AlignedTile> tiles;
  for (int64_t n = 0; n < lists.tiles; ++n) {
    const int* list = data.data() + (b * lists.batch_step * lists.tiles + n) * lists.stride;
    if (list[0] >= 0) tiles.push_back({list[7] >> 2, list[7] & 3, list});
  }
  std::sort(tiles.begin(), tiles.end(), [](const AlignedTile& x, const AlignedTile& y) { return x.first < y.first; });
  return tiles;
}

TEST(MaskLists, HaveTilesThatVisitFewKeys) {
  for (const Scene& s : kScenes) {
    if (s.by_head) continue;
    SCOPED_TRACE(::testing::Message() << s.queries << " x " << s.keys << " blocks of " << s.block);
    const Problems problem(s);
    const int64_t groups = (s.queries + 63) / 64;
    const cuda::MaskListExtent extent{s.heads_q, (groups + 3) / 4 * 4, (s.keys + 63) / 64, true, groups};
    std::vector<int> data(cuda::mask_list_bytes(problem.p, extent) / sizeof(int), -7);
    Sm90ForwardParams params{};
    params.forward.attention = cuda::attention_params(problem.p, nullptr);
    const MaskLists lists = params.mask_lists = cuda::mask_lists(problem.p, extent, data.data());
    kernel_emulator::list_key_tiles(&params, static_cast<int64_t>(data.size()) / lists.stride);
    // Blocks of 16 keys that some query sees, as the kernel counts them.
    const auto cost = [&](int64_t b, int64_t first, int64_t count) {
      int64_t blocks = 8;
      for (int64_t j = 0; j < s.keys; j += 16) {
        bool visited = false;
        for (int64_t group = first; group < first + count; ++group)
          visited |= problem.tile(b, 0, 64 * group, 64, j, 16).visited();
        blocks += visited;
      }
      return blocks;
    };
    for (int64_t b = 0; b < s.batch; ++b) {
      int64_t next = 0, aligned = 0, regular = 0;
      for (const AlignedTile& tile : aligned_tiles(data, lists, b)) {
        ASSERT_EQ(tile.first, next);
        ASSERT_TRUE(tile.groups >= 1 && tile.groups <= 3);
        next += tile.groups, aligned += cost(b, tile.first, tile.groups);
        int found = 0;
        std::vector<bool> full[3];
        for (int64_t key_tile = 0; key_tile < extent.longest; ++key_tile) {
          if (!problem.tile(b, 0, 64 * tile.first, 64 * tile.groups, 64 * key_tile, 64).visited()) continue;
          ASSERT_LT(found, tile.list[0]);
          EXPECT_EQ(tile.list[kMaskListHeader + found++] & 0xffffff, key_tile);
          for (int64_t g = 0; g < tile.groups; ++g) {
            const auto of_group = problem.tile(b, 0, 64 * (tile.first + g), 64, 64 * key_tile, 64);
            const bool whole = 64 * key_tile + 64 <= s.keys;  // a short tile is not full by position
            full[g].push_back(whole && of_group.visited() && of_group.all && of_group.shows_all);
          }
        }
        ASSERT_EQ(found, tile.list[0]);
        for (int64_t g = 0; g < tile.groups; ++g) {
          const int begin = tile.list[8 + 2 * g], end = tile.list[9 + 2 * g];
          EXPECT_EQ(begin < end, std::count(full[g].begin(), full[g].end(), true) != 0);
          for (int n = begin; n < end; ++n) EXPECT_TRUE(full[g][static_cast<size_t>(found - 1 - n)]) << n;
        }
      }
      EXPECT_EQ(next, groups);
      for (int64_t first = 0; first < groups; first += 3)
        regular += cost(b, first, std::min<int64_t>(3, groups - first));
      EXPECT_LE(aligned, regular);
      if (s.block == -400) {
        EXPECT_LT(aligned, regular);
      }
    }
  }
}

TEST(MaskBits, AreThePairsOfLanes) {
  Random random(7);
  unsigned char box[1024];
  for (unsigned char& byte : box) byte = static_cast<unsigned char>(random.below(256));
  for (const bool has_rows : {true, false})
    for (const int half : {0, 1})
      for (const bool keys_are_rows : {true, false}) {
        unsigned pairs[128];
        kernel_emulator::pairs_of_box(box, has_rows, half, keys_are_rows, pairs);
        for (int thread = 0; thread < 128; ++thread)
          for (int bit = 0; bit < 32; ++bit) {
            const int row = thread / 32 * 16 + thread % 32 / 4 + bit / 16 * 8,
                      column = bit % 8 * 8 + thread % 4 * 2 + bit / 8 % 2;
            const int query = keys_are_rows ? column : row, key = 64 * half + (keys_are_rows ? row : column);
            const bool expected = (box[(has_rows ? query : 0) * 16 + key / 8] >> key % 8 & 1) != 0;
            ASSERT_EQ((pairs[thread] >> bit & 1) != 0, expected) << thread << " " << bit;
          }
      }
}

}  // namespace
}  // namespace cuflash::test
