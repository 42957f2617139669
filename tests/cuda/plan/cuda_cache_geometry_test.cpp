// Compares the index arithmetic of the KV kernels with that of the rest of the library, also for nonsensical lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cuda/families/params_kv.h"
#include "cuda/plan/typical.h"
#include "kv/geometry.h"
#include "kv/ticket.h"
#include "problem/visibility.h"

namespace cuflash::cuda {
namespace {

constexpr int kBatch = 3, kRoom = 700;

// A problem with its own lengths and tables.
struct Scene {
  std::vector<int32_t> rows, pad, used_q, used_new, entry, table;
  CacheProblem problem;
  KvPlan plan;
  KvParams params;

  explicit Scene(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
    const int64_t page = below(2) ? 1 + below(100) : 0;
    problem = cache_of({.batch = kBatch,
                        .heads_q = 2 * (1 + below(9)),
                        .heads_k = 2,
                        .len_q = 1 + below(40),
                        .room = kRoom,
                        .page_size = page,
                        .len_new = below(30),
                        .num_splits = below(5)});
    problem.window_left = below(2) ? kUnbounded : below(300);
    problem.window_right = below(2) ? kUnbounded : below(5);
    for (int b = 0; b < kBatch; ++b) {
      rows.push_back(static_cast<int32_t>(below(kRoom - 40)));
      pad.push_back(static_cast<int32_t>(below(rows.back() + 1)));
      used_q.push_back(static_cast<int32_t>(below(problem.len_q + 1)));
      used_new.push_back(static_cast<int32_t>(below(problem.cache.len_new + 1)));
      entry.push_back(static_cast<int32_t>(below(kBatch)));
    }
    problem.cache.rows = rows.data(), problem.cache.leftpad = pad.data(), problem.used_q = used_q.data();
    problem.cache.used_new = used_new.data(), problem.cache.entry = entry.data(), problem.cache.entries = kBatch;
    if (page) {
      problem.cache.columns = problem.cache.table_stride = (kRoom + page - 1) / page;
      problem.cache.entries = 500;
      for (int64_t n = 0; n < kBatch * problem.cache.columns; ++n) table.push_back(static_cast<int32_t>(below(500)));
      problem.cache.table = table.data(), problem.cache.entry = nullptr;
    }
    plan = plan_kv(problem, arch_named("sm_90a"), 132);
    params = kv_params(problem, plan, nullptr, nullptr);
  }
};

TEST(CacheGeometry, IsThatOfTheProblem) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Scene scene(seed);
    const KvParams& p = scene.params;
    const int tile_q = scene.plan.tile_q, group = p.attention.group;
    for (int b = 0; b < kBatch; ++b) {
      const CachedSequence s = cached_sequence(p, b);
      const Sequence expected = sequence_of(scene.problem, b);
      ASSERT_EQ(s.pad, expected.k_begin);
      ASSERT_EQ(s.len_q, expected.len_q);
      ASSERT_EQ(s.len_k, expected.len_k);
      ASSERT_EQ(s.shift, expected.shift);
      for (int tile = 0; tile < p.row_tiles; ++tile) {
        const RowRange rows = rows_of_tile(p.attention, s, tile, tile_q);
        ASSERT_EQ(rows.first, tile * tile_q);
        if (rows.first >= rows.end) {
          ASSERT_GE(tile * tile_q, s.len_q * group);
          continue;
        }
        const Range queries{rows.first / group, (rows.end - 1) / group + 1};
        const Range any = keys_of_queries(scene.problem, expected, queries);
        const Range all = keys_of_all_queries(scene.problem, expected, queries);
        const SeenKeys seen = keys_of_rows(p.attention, s, rows);
        ASSERT_EQ(seen.any.begin >= seen.any.end, any.empty());
        if (any.empty()) continue;
        ASSERT_EQ(seen.any.begin, any.begin);
        ASSERT_EQ(seen.any.end, any.end);
        ASSERT_EQ(seen.all.begin >= seen.all.end, all.empty());
        if (all.empty()) continue;
        ASSERT_EQ(seen.all.begin, all.begin);
        ASSERT_EQ(seen.all.end, all.end);
      }
      for (int j = 0; j < s.len_k; ++j) {
        const KeyOffsets place = offsets_of_key(p, s, b, {0, s.len_k}, j);
        if (s.pad + j >= scene.rows[static_cast<size_t>(b)]) {
          ASSERT_EQ(place.k, kNewRow);
          continue;
        }
        const CacheRow row = cache_row(scene.problem.cache, b, s.pad + j);
        ASSERT_EQ(place.k, scene.problem.k.at(row.entry, 0, row.row));
        ASSERT_EQ(place.v, scene.problem.v.at(row.entry, 0, row.row));
      }
      ASSERT_EQ(offsets_of_key(p, s, b, {3, 5}, 2).k, kNoRow);
      ASSERT_EQ(offsets_of_key(p, s, b, {3, 5}, 5).v, kNoRow);
    }
  }
}

TEST(CacheGeometry, ItemsAreTheWholeOfTheWork) {
  const Scene scene(4);
  const KvParams& p = scene.params;
  const int64_t items = int64_t{kBatch} * p.attention.heads_k * p.row_tiles * p.splits;
  std::vector<int> times(static_cast<size_t>(items));
  for (int64_t n = 0; n < items; ++n) {
    const WorkItem at = work_item(p, n);
    ASSERT_LT(at.b, kBatch);
    ASSERT_LT(at.head_k, p.attention.heads_k);
    ASSERT_LT(at.row_tile, p.row_tiles);
    ASSERT_LT(at.split, p.splits);
    ++times.at(static_cast<size_t>(tile_number(p, at) * p.splits + at.split));
  }
  EXPECT_EQ(std::count(times.begin(), times.end(), 1), items);
}

TEST(CacheGeometry, DivisorsDivideExactly) {
  constexpr unsigned kEnd = 1u << 31;
  std::mt19937 random(7);
  const auto expect_exact = [](unsigned n, unsigned d) { ASSERT_EQ(divided(n, divisor(d)), n / d) << n << " / " << d; };
  for (int round = 0; round < 100000; ++round) {
    const unsigned d = std::max(1u, static_cast<unsigned>(random()) >> (1 + random() % 31));
    const unsigned n = static_cast<unsigned>(random()) >> (1 + random() % 31);
    expect_exact(n, d);
    const unsigned quotient = n / d;  // and where quotients change
    expect_exact(quotient * d, d);
    if (quotient > 0) expect_exact(quotient * d - 1, d);
    expect_exact(kEnd - 1, d);
    expect_exact(0, d);
  }
  for (unsigned bit = 0; bit < 31; ++bit)
    for (const unsigned d : {(1u << bit) - 1, 1u << bit, (1u << bit) + 1})
      if (d > 0) expect_exact(kEnd - 1, d), expect_exact(d, d), expect_exact(d - 1, d);
}

TEST(CacheGeometry, ItemsOfPlainCallsAreThoseOfAllCalls) {
  std::mt19937 random(8);
  for (int round = 0; round < 2000; ++round) {
    KvParams p{};
    p.attention.batch = 1 + static_cast<int>(random() % 300),
    p.attention.heads_k = 1 + static_cast<int>(random() % 130);
    p.row_tiles = 1 + static_cast<int>(random() % 40), p.splits = 1 + static_cast<int>(random() % 140);
    PrologueLoads f{};
    f.row_tiles = p.row_tiles, f.by_row_tiles = divisor(static_cast<unsigned>(p.row_tiles));
    const unsigned width = static_cast<unsigned>(p.attention.heads_k * p.row_tiles),
                   height = static_cast<unsigned>(p.attention.batch);
    const unsigned items = width * height * static_cast<unsigned>(p.splits);
    for (const unsigned n : {0u, items - 1, static_cast<unsigned>(random()) % items}) {
      const WorkItem at = work_item(f, n % width, n / width % height, n / width / height), expected = work_item(p, n);
      ASSERT_EQ(std::tie(at.b, at.head_k, at.row_tile, at.split),
                std::tie(expected.b, expected.head_k, expected.row_tile, expected.split));
      ASSERT_EQ(item_number(p, at), n);
    }
  }
}

// The TMA producer, which looks up rows before any length is known, finds the same rows as all others; table entries
// are clamped to existing pages.
TEST(CacheGeometry, BoxesLieWhereRowsLie) {
  std::mt19937 random(9);
  constexpr int kBatch = 3, kStride = 40, kEntries = 11;
  std::vector<int> table(kBatch * kStride);
  for (int& entry : table) entry = static_cast<int>(random() % (kEntries + 4)) - 2;
  for (const int page_size : {0, 1, 16, 48, 64, 1000}) {
    const bool paged = page_size != 0 && page_size != 1000;
    const int last_row = paged ? page_size * kStride - 1 : 999;
    CacheView view{};
    view.entries = kEntries;
    if (paged) view.table = table.data(), view.table_stride = kStride, view.page_size = page_size;
    else if (page_size != 0) view.entry = table.data();
    PrologueLoads first{};
    first.table = page_size != 0 ? table.data() : nullptr, first.table_stride = paged ? kStride : 1;
    first.page_size = page_size, first.by_page_size = divisor(static_cast<unsigned>(std::max(1, page_size)));
    first.last_row = last_row, first.last_entry = kEntries - 1;
    for (int b = 0; b < kBatch; ++b) {
      for (int row = 0; row <= last_row; row += 1 + static_cast<int>(random() % 7)) {
        const EntryRow at = entry_row(first, b, row), expected = entry_row(view, b, row);
        ASSERT_EQ(std::tie(at.entry, at.row), std::tie(expected.entry, expected.row)) << page_size << " " << row;
      }
      if (page_size == 0) continue;
      const EntryRow behind = entry_row(first, b, last_row + 4000), last = entry_row(view, b, last_row);
      EXPECT_EQ(std::tie(behind.entry, behind.row), std::tie(last.entry, last.row));
    }
  }
}

void expect_partition(const KvParams& p, int count) {
  const TileRange tiles{7, 7 + count};
  const auto [long_splits, short_splits] = used_splits(p, tiles);
  ASSERT_GE(long_splits, 1);
  ASSERT_GE(short_splits, 0);
  ASSERT_LE(long_splits + short_splits, p.splits);
  std::vector<int> times(static_cast<size_t>(count));
  for (int split = 0; split < long_splits + short_splits; ++split) {
    const SplitTiles part = tiles_of_split(tiles, {long_splits, short_splits}, split);
    ASSERT_TRUE(count == 0 || part.count > 0);
    if (split < long_splits) {
      ASSERT_EQ(part.first, tiles.begin + split);  // for any length
      ASSERT_LE(part.count, (count - short_splits * kShortTiles) / long_splits + 1);
    } else {
      ASSERT_EQ(part.count, kShortTiles);
    }
    for (int n = 0; n < part.count; ++n) ++times.at(static_cast<size_t>(part.first + n * part.step - tiles.begin));
  }
  ASSERT_EQ(std::count(times.begin(), times.end(), 1), count);
}

TEST(CacheGeometry, SplitsAreAPartitionWithoutEmptyParts) {
  KvParams p{};
  for (p.splits = 1; p.splits < 70; p.splits += 3)
    for (p.base_splits = 1; p.base_splits <= p.splits; p.base_splits += 5)
      for (p.min_tiles_per_split = 1; p.min_tiles_per_split <= 3; ++p.min_tiles_per_split) {
        p.short_splits = 0;
        for (int count = 0; count < 400; ++count) ASSERT_NO_FATAL_FAILURE(expect_partition(p, count));
        if (p.min_tiles_per_split == 1) continue;  // a fixed number of splits has no short ones
        for (p.short_splits = 1; p.short_splits <= p.splits - p.base_splits && p.short_splits < 6; ++p.short_splits)
          for (int count = 0; count < 400; count += 3) ASSERT_NO_FATAL_FAILURE(expect_partition(p, count));
      }
}

TEST(CacheGeometry, LongSequencesUseMoreSplits) {
  KvParams p{};
  p.splits = 8, p.base_splits = 2, p.min_tiles_per_split = 2;
  const auto used = [&](int tiles) { return used_splits(p, {0, tiles}).long_splits; };
  EXPECT_EQ(used(3), 1);
  EXPECT_EQ(used(4), 2);
  EXPECT_EQ(used(3 * kLongTiles - 1), 2);
  EXPECT_EQ(used(3 * kLongTiles), 3);
  EXPECT_EQ(used(100 * kLongTiles), 8);
}

TEST(CacheGeometry, ShortSplitsAreTheLastItems) {
  KvParams p{};
  p.splits = 6, p.base_splits = 2, p.min_tiles_per_split = 2, p.short_splits = 4, p.row_tiles = 1;
  p.attention.batch = 5, p.attention.heads_k = 3;
  const TileRange tiles{0, 128};
  const UsedSplits used = used_splits(p, tiles);
  EXPECT_EQ(used.long_splits, 2);
  EXPECT_EQ(used.short_splits, 4);
  EXPECT_EQ(used_splits(p, {0, 4 * kShortTiles - 1}).short_splits, 0);
  int before = tiles.end;
  for (int64_t n = 0; n < 5 * 3 * 6; ++n) {
    const SplitTiles part = tiles_of_split(tiles, used, work_item(p, n).split);
    ASSERT_LE(part.count, before);
    before = part.count;
  }
  EXPECT_EQ(before, kShortTiles);
}

// Lengths in device memory are not checked. Nothing that follows from them may point outside the tensors.
TEST(CacheGeometry, NonsensicalLengthsAreClampedToTheTensors) {
  Scene scene(11);
  const int32_t nonsense[] = {-5, 0, 3, kRoom, kRoom + 1, 0x7fffffff, -0x7fffffff - 1};
  for (const int32_t rows : nonsense)
    for (const int32_t pad : nonsense)
      for (const int32_t q : nonsense)
        for (const int32_t more : nonsense) {
          scene.rows[1] = rows, scene.pad[1] = pad, scene.used_q[1] = q, scene.used_new[1] = more;
          const CachedSequence s = cached_sequence(scene.params, 1);
          ASSERT_TRUE(0 <= s.pad && s.pad <= s.old_end && s.old_end <= kRoom);
          ASSERT_TRUE(0 <= s.new_count && s.new_count <= scene.problem.cache.len_new);
          ASSERT_LE(s.old_end + s.new_count, kRoom);
          ASSERT_EQ(s.len_k, s.old_end + s.new_count - s.pad);
          ASSERT_TRUE(0 <= s.len_q && s.len_q <= scene.problem.len_q);
        }
}

TEST(Ticket, IsDistinguishedFromAnythingElse) {
  std::mt19937_64 random(3);
  for (uint64 address = 0x7f0000000000; address < 0x7f0000000000 + 8000; address += 8) {
    const uint64 empty = empty_ticket(address);
    EXPECT_EQ(empty & kTicketCount, 0u);
    for (const uint64 count : {0, 1, kMaxSplits}) EXPECT_TRUE(is_ticket(empty + count, empty));
    EXPECT_FALSE(is_ticket(empty_ticket(address + 8), empty));
    for (const uint64 word : {uint64{0}, ~uint64{0}, uint64{random()}, uint64{0x3f8000003f800000}})
      EXPECT_FALSE(is_ticket(word, empty));
  }
  EXPECT_TRUE(is_last(empty_ticket(64) + 6, 7));
  EXPECT_FALSE(is_last(empty_ticket(64) + 5, 7));
}

TEST(RotaryPairs, AreMutual) {
  for (const int interleaved : {0, 1}) {
    RotaryView r{};
    r.dim = 24, r.interleaved = interleaved;
    for (int d = 0; d < r.dim; ++d) {
      const RotaryPair pair = rotary_pair(r, d), back = rotary_pair(r, pair.other);
      EXPECT_EQ(back.other, d);
      EXPECT_EQ(back.column, pair.column);
      EXPECT_NE(back.second, pair.second);
      EXPECT_EQ(pair.second, d > pair.other);
      EXPECT_TRUE(pair.column >= 0 && pair.column < 12);
    }
  }
}

}  // namespace
}  // namespace cuflash::cuda
