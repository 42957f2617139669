// Sequences that append to the same entry or page: refused if a row would be written for two of them, or written for one and
// read by another; served otherwise.
#include <cuflash/cached_attention.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <map>
#include <numeric>

#include "tests/properties/property.h"

namespace cuflash {
namespace {

using check::Choices;
using Numbers = std::vector<int32_t>;

// One head of one element.
struct Pages {
  int64_t page_size = 4, pages = 8, columns = 3, len_q = 1, window = -1;
  Numbers table{}, rows{}, used_q{}, fresh{};

  int64_t batch() const { return static_cast<int64_t>(rows.size()); }

  // The message of the call; "" if it is served.
  std::string answer() const {
    const auto zeros = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count) + 1); };
    const int64_t len_new = fresh.empty() ? 0 : *std::max_element(fresh.begin(), fresh.end());
    std::vector<float> q = zeros(batch() * len_q), o = q, k_new = zeros(batch() * len_new);
    std::vector<float> k = zeros(pages * page_size), v = k;
    Attention a{.q = bshd(std::as_const(q).data(), batch(), len_q, 1, 1), .causal = true, .window_left = window};
    a.seqlens_q = contiguous(used_q.data(), batch());
    CacheTensors t{.k = bshd(k.data(), pages, page_size, 1, 1),
                   .v = bshd(v.data(), pages, page_size, 1, 1),
                   .seqlens = contiguous(rows.data(), batch()),
                   .block_table = contiguous(table.data(), batch(), columns),
                   .o = bshd(o.data(), batch(), len_q, 1, 1)};
    t.k_new = t.v_new = bshd(std::as_const(k_new).data(), batch(), len_new, 1, 1);
    t.seqlens_new = contiguous(fresh.data(), batch());
    try {
      flash_attention_with_cache(a, t, {.num_threads = 1});
    } catch (const FlashAttentionError& error) {
      return error.what();
    }
    return "";
  }

  // Every row by itself: written at two places, or written at one and read at another.
  bool is_conflict() const {
    using Place = std::pair<int64_t, int64_t>;  // sequence, row of its cache
    std::multimap<int64_t, Place> written;      // by row of all pages
    const auto row_of = [&](int64_t b, int64_t r) {
      return table[static_cast<size_t>(b * columns + r / page_size)] * page_size + r % page_size;
    };
    const auto at = [](const Numbers& of, int64_t b) { return int64_t{of[static_cast<size_t>(b)]}; };
    for (int64_t b = 0; b < batch(); ++b)
      for (int64_t n = 0; n < at(fresh, b); ++n) {
        const int64_t r = at(rows, b) + n;
        if (written.contains(row_of(b, r))) return true;
        written.insert({row_of(b, r), {b, r}});
      }
    for (int64_t b = 0; b < batch(); ++b)
      for (int64_t i = 0; i < at(used_q, b); ++i)
        for (int64_t r = 0, len_k = at(rows, b) + at(fresh, b); r < len_k; ++r) {
          const int64_t stands_at = len_k - at(used_q, b) + i;
          if (r > stands_at || (window >= 0 && r < stands_at - window)) continue;
          const auto found = written.find(row_of(b, r));
          if (found != written.end() && found->second != Place(b, r)) return true;
        }
    return false;
  }
};

TEST(Appends, AreRefusedExactlyWhereARowIsAnothers) {
  int64_t refused = 0, served = 0;
  test::property("a row belongs to one sequence", 4000, [&](Choices& choices) -> std::string {
    Pages p{.page_size = choices.between(1, 5), .pages = choices.between(1, 12), .columns = choices.between(1, 4)};
    p.len_q = choices.between(1, 3), p.window = choices.between(-1, 4);
    for (int64_t b = 0, batch = choices.between(1, 4); b < batch; ++b) {
      const int64_t room = p.page_size * p.columns, fresh = choices.between(0, std::min<int64_t>(room, 4));
      p.fresh.push_back(static_cast<int32_t>(fresh));
      p.rows.push_back(static_cast<int32_t>(choices.between(0, room - fresh)));
      p.used_q.push_back(static_cast<int32_t>(choices.between(0, p.len_q)));
      for (int64_t n = 0; n < p.columns; ++n) p.table.push_back(static_cast<int32_t>(choices.between(0, p.pages - 1)));
    }
    const std::string answer = p.answer();
    const bool conflict = p.is_conflict();
    (conflict ? refused : served) += 1;
    if (conflict != !answer.empty()) return conflict ? "must be refused" : answer;
    return conflict && answer.rfind("block_table: entries [", 0) != 0 ? answer : "";
  });
  EXPECT_GT(refused, test::scaled(500));
  EXPECT_GT(served, test::scaled(500));
}

TEST(Appends, TheSentenceNamesBothSequencesThePageAndTheRow) {
  Pages same{.table = {0, 5, -1, 1, 5, -1}, .rows = {5, 5}, .used_q = {1, 1}, .fresh = {1, 1}};
  EXPECT_EQ(
      same.answer(),
      "block_table: entries [0, 1] and [1, 1] are both page 5, and new rows of both would be written to its row 1; "
      "append to pages that no other sequence holds");
  Pages read{.table = {0, 5, -1, 1, 5, -1}, .rows = {5, 7}, .used_q = {1, 1}, .fresh = {1, 0}};
  EXPECT_EQ(
      read.answer(),
      "block_table: entries [0, 1] and [1, 1] are both page 5, and sequence 0 appends to its row 1, which sequence "
      "1 reads; append to pages that no other sequence holds");
}

TEST(Appends, ASharedPrefixIsLegal) {
  EXPECT_EQ((Pages{.table = {0, 5, -1, 0, 6, -1}, .rows = {5, 5}, .used_q = {1, 1}, .fresh = {1, 1}}.answer()), "");
  // One sequence may append to a page after the part that the other one reads.
  EXPECT_EQ((Pages{.table = {0, 5, -1, 0, 5, -1}, .rows = {6, 6}, .used_q = {1, 1}, .fresh = {1, 0}}.answer()), "");
}

// Pages shared by many sequences, and tables that would collide in a poor hash: the check takes no longer than a sort.
TEST(Appends, ManySequencesTakeNoTime) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int64_t kBatch = 1 << 16;
  Pages one_page{.page_size = kBatch, .pages = 1, .columns = 1, .window = 0};
  Pages far_pages{.page_size = 1, .pages = kBatch * 16, .columns = 1};
  for (int64_t b = 0; b < kBatch; ++b) {
    one_page.table.push_back(0), far_pages.table.push_back(static_cast<int32_t>((kBatch - 1 - b) * 16));
    one_page.rows.push_back(static_cast<int32_t>(b)), far_pages.rows.push_back(0);
  }
  for (Pages* p : {&one_page, &far_pages}) p->used_q = p->fresh = Numbers(kBatch, 1);
  EXPECT_EQ(one_page.answer(), "");
  EXPECT_EQ(far_pages.answer(), "");
  far_pages.table[3] = far_pages.table[kBatch - 2];
  EXPECT_EQ(far_pages.answer().rfind("block_table: entries [3, 0] and [65534, 0] are both page 16,", 0), 0u)
      << far_pages.answer();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

// Comparing all pairs would take minutes.
TEST(Appends, AMillionEntriesOfBatchIdx) {
  constexpr int64_t kBatch = 1 << 20;
  std::vector<float> q(kBatch), o(kBatch), k_new(kBatch), k(2 * kBatch), v(2 * kBatch);
  Numbers rows(kBatch, 1), entries(kBatch);
  std::iota(entries.rbegin(), entries.rend(), 0);
  const auto ask = [&] {
    CacheTensors t{.k = bshd(k.data(), kBatch, 2, 1, 1),
                   .v = bshd(v.data(), kBatch, 2, 1, 1),
                   .seqlens = contiguous(std::as_const(rows).data(), kBatch),
                   .batch_idx = contiguous(std::as_const(entries).data(), kBatch),
                   .o = bshd(o.data(), kBatch, 1, 1, 1)};
    t.k_new = t.v_new = bshd(std::as_const(k_new).data(), kBatch, 1, 1, 1);
    workspace_size({.q = bshd(std::as_const(q).data(), kBatch, 1, 1, 1)}, t);
  };
  const std::clock_t start = std::clock();  // processor time, because the machine may be busy
  EXPECT_NO_THROW(ask());
  entries[7] = entries[kBatch - 5];
  try {
    ask();
    ADD_FAILURE() << "two sequences append to one entry";
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("batch_idx: entries 7 and 1048571 are both 4,", 0), 0u) << error.what();
  }
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace cuflash
