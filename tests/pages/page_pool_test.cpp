// The page pool, rule by rule; page_pool_fuzz_test.cpp has random histories.
#include <cuflash/page_pool.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace cuflash {
namespace {

using Pages = std::vector<int32_t>;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max(), kLowest = std::numeric_limits<int64_t>::min();

// A sequence of this many tokens.
CachedSequence grown(PagePool& pool, int64_t tokens) {
  const CachedSequence sequence = pool.start().value();
  EXPECT_TRUE(pool.append(sequence, tokens));
  return sequence;
}

template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), CUFLASH_INVALID_ARGUMENT) << error.what();
    return error.what();
  }
  return "";
}

// The message starts with the argument and has these texts.
template <class Body>
void expect_refused(Body body, const std::string& argument, const std::vector<std::string>& texts = {}) {
  const std::string message = message_of(body);
  EXPECT_EQ(message.rfind(argument + ": ", 0), 0u) << argument << ", got: " << message;
  for (const std::string& text : texts) EXPECT_NE(message.find(text), message.npos) << text << " in: " << message;
}

bool same(const CachedSequenceState& a, const CachedSequenceState& b) {
  return a.tokens == b.tokens && a.pages == b.pages && a.sinks == b.sinks && a.dropped == b.dropped &&
         a.position == b.position;
}

TEST(PagePool, PagesAreTakenInOrderAsTokensNeedThem) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 2});
  const CachedSequence a = pool.start().value(), b = pool.start().value();
  EXPECT_EQ(pool.append(a, 0).pages, 0);
  EXPECT_EQ(pool.append(a, 1).pages, 1);
  EXPECT_EQ(pool.append(b, 5).pages, 2);
  EXPECT_EQ(pool.append(a, 3).pages, 0);
  EXPECT_EQ(pool.append(a, 1).pages, 1);
  EXPECT_EQ(pool.pages(a), (Pages{0, 3}));
  EXPECT_EQ(pool.pages(b), (Pages{1, 2}));
  EXPECT_TRUE(same(pool.state(a), {.tokens = 5, .pages = 2, .sinks = 0, .dropped = 0, .position = 5}));
  pool.check();
}

TEST(PagePool, ReleasedPagesAreTakenAgainFirstOneFirst) {
  PagePool pool({.pages = 8, .page_size = 1, .max_sequences = 2});
  const CachedSequence a = grown(pool, 3);
  grown(pool, 2);
  pool.release(a);
  EXPECT_EQ(pool.pages(grown(pool, 4)), (Pages{0, 1, 2, 5}));
}

TEST(PagePool, FullIsAnAnswerAndChangesNothing) {
  PagePool pool({.pages = 4, .page_size = 2, .max_sequences = 2, .max_pages_per_sequence = 3});
  const CachedSequence a = grown(pool, 3), b = grown(pool, 2);
  const Append too_long = pool.append(a, 4);
  EXPECT_EQ(too_long.fit, Fit::sequence_full);
  EXPECT_EQ(too_long.pages, 0);
  EXPECT_EQ(too_long.missing_pages, 1) << "7 tokens are 4 pages, and a sequence may have 3";
  EXPECT_EQ(pool.append(a, 5).missing_pages, 1);
  EXPECT_EQ(pool.append(a, 6).missing_pages, 2);
  const Append endless = pool.append(a, kHuge);
  EXPECT_EQ(endless.fit, Fit::sequence_full);
  EXPECT_EQ(endless.missing_pages, (kHuge - 3 - 1) / 2 + 1);
  const Append no_pages = pool.append(b, 4);
  EXPECT_EQ(no_pages.fit, Fit::pool_full);
  EXPECT_EQ(no_pages.pages, 2);
  EXPECT_EQ(no_pages.missing_pages, 1);
  EXPECT_EQ(pool.state(a).tokens, 3);
  EXPECT_EQ(pool.pages(b), (Pages{2}));
  EXPECT_FALSE(pool.start());
  EXPECT_FALSE(pool.fork(a));
  EXPECT_TRUE(pool.append(b, 2)) << "one page was left";
  EXPECT_TRUE(pool.append(a, 1)) << "and a place in a page";
  EXPECT_EQ(pool.statistics().free_pages, 0);
  pool.check();
}

TEST(PagePool, AForkSharesPagesUntilOneIsWritten) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 3});
  const CachedSequence a = grown(pool, 6);
  const CachedSequence b = pool.fork(a).value();
  EXPECT_EQ(pool.pages(b), pool.pages(a));
  EXPECT_EQ(pool.statistics().shared_pages, 2);
  EXPECT_FALSE(pool.append(b, 0).copy) << "nothing is written";

  const Append written = pool.append(b, 1);
  ASSERT_TRUE(written.copy);
  EXPECT_EQ(written.pages, 1);
  EXPECT_EQ(written.copy->source, 1);
  EXPECT_EQ(written.copy->destination, 2);
  EXPECT_EQ(written.copy->tokens, 2);
  EXPECT_EQ(pool.pages(a), (Pages{0, 1}));
  EXPECT_EQ(pool.pages(b), (Pages{0, 2}));
  EXPECT_FALSE(pool.append(a, 1).copy) << "no other sequence has that page now";
  pool.check();
}

TEST(PagePool, AFullLastPageIsSharedForGood) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 2});
  const CachedSequence a = grown(pool, 8), b = pool.fork(a).value();
  EXPECT_FALSE(pool.append(a, 1).copy);
  EXPECT_FALSE(pool.append(b, 1).copy);
  EXPECT_EQ(pool.pages(b), (Pages{0, 1, 3}));
}

TEST(PagePool, ACopyThatDoesNotFitChangesNothing) {
  PagePool pool({.pages = 2, .page_size = 4, .max_sequences = 2});
  const CachedSequence a = grown(pool, 6), b = pool.fork(a).value();
  const Append refused = pool.append(b, 1);
  EXPECT_EQ(refused.fit, Fit::pool_full);
  EXPECT_EQ(refused.missing_pages, 1);
  EXPECT_FALSE(refused.copy);
  pool.release(a);
  EXPECT_FALSE(pool.append(b, 1).copy) << "the page is its own now";
  EXPECT_EQ(pool.pages(b), (Pages{0, 1}));
}

TEST(PagePool, AForkOfAPrefixDoesNotOverwriteTheRest) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 3});
  const CachedSequence a = grown(pool, 10), b = pool.fork(a, 5).value(), c = pool.fork(a, 0).value();
  EXPECT_EQ(pool.pages(b), (Pages{0, 1}));
  EXPECT_EQ(pool.pages(c), Pages{});
  const Append written = pool.append(b, 1);
  ASSERT_TRUE(written.copy);
  EXPECT_EQ(written.copy->tokens, 1);
  EXPECT_EQ(pool.pages(a), (Pages{0, 1, 2}));
  expect_refused([&] { pool.fork(a, 11); }, "tokens", {"11", "10"});
  expect_refused([&] { pool.fork(a, -2); }, "tokens", {"-2"});
}

TEST(PagePool, TruncatingGivesPagesBackAndLeavesSharedOnesAlone) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 2});
  const CachedSequence a = grown(pool, 10), b = pool.fork(a).value();
  pool.truncate(a, 5);
  EXPECT_EQ(pool.pages(a), (Pages{0, 1}));
  EXPECT_EQ(pool.statistics().used_pages, 3);
  ASSERT_TRUE(pool.append(a, 1).copy) << "b still reads what stood there";
  pool.truncate(b, 0);
  EXPECT_EQ(pool.pages(b), Pages{});
  EXPECT_EQ(pool.statistics().used_pages, 2);
  expect_refused([&] { pool.truncate(a, 7); }, "tokens", {"7", "6"});
  expect_refused([&] { pool.truncate(a, -1); }, "tokens", {"-1"});
  pool.check();
}

TEST(PagePool, TrimmingKeepsSinksAndWindowInWholePages) {
  PagePool pool({.pages = 16, .page_size = 4, .max_sequences = 1});
  const CachedSequence a = grown(pool, 30);
  const Trim trimmed = pool.trim(a, 3, 10);  // keeps 0 .. 3 and 20 .. 29
  EXPECT_EQ(trimmed.first_page, 1);
  EXPECT_EQ(trimmed.pages, 4);
  EXPECT_EQ(trimmed.freed_pages, 4);
  EXPECT_EQ(pool.pages(a), (Pages{0, 5, 6, 7}));
  EXPECT_TRUE(same(pool.state(a), {.tokens = 14, .pages = 4, .sinks = 4, .dropped = 16, .position = 30}));

  EXPECT_EQ(pool.trim(a, 3, 10).pages, 0);
  EXPECT_TRUE(pool.append(a, 4));
  EXPECT_EQ(pool.trim(a, 3, 10).pages, 1);  // 24 is the first one now
  EXPECT_EQ(pool.pages(a), (Pages{0, 6, 7, 1}));
  EXPECT_EQ(pool.state(a).position, 34);
  pool.check();
}

TEST(PagePool, TrimmingDropsNothingThatIsWanted) {
  PagePool pool({.pages = 16, .page_size = 4, .max_sequences = 1});
  const CachedSequence a = grown(pool, 30);
  for (const auto& [sinks, window] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 30}, {0, 27}, {30, 0}, {25, 0}, {kHuge, 0}, {0, kHuge}, {kHuge, kHuge}, {13, 14}})
    EXPECT_EQ(pool.trim(a, sinks, window).pages, 0) << sinks << ", " << window;
  EXPECT_EQ(pool.trim(a, 12, 14).pages, 1);
  // Only page 0 could be dropped, but the gap starts at page 3, and there is never a second gap.
  EXPECT_EQ(pool.trim(a, 0, 23).pages, 0);
  expect_refused([&] { pool.trim(a, 13, 0); }, "sinks", {"13", "12"});
  expect_refused([&] { pool.trim(a, -1, 0); }, "sinks", {"-1"});
  expect_refused([&] { pool.trim(a, 0, -1); }, "window", {"-1"});
  // The window starts inside the gap, so everything before it is dropped.
  EXPECT_EQ(pool.trim(a, 5, 15).pages, 1);
  EXPECT_EQ(pool.state(a).sinks, 8);
  EXPECT_EQ(pool.trim(a, 0, 0).pages, 5);
  EXPECT_TRUE(same(pool.state(a), {.tokens = 2, .pages = 1, .sinks = 0, .dropped = 28, .position = 30}));
  pool.check();
}

TEST(PagePool, ACutBeforeTheGapTakesTheGapAway) {
  PagePool pool({.pages = 16, .page_size = 2, .max_sequences = 3});
  const CachedSequence a = grown(pool, 20);
  pool.trim(a, 4, 6);
  ASSERT_EQ(pool.state(a).dropped, 10);
  const CachedSequence behind = pool.fork(a, 5).value(), before = pool.fork(a, 3).value();
  EXPECT_EQ(pool.state(behind).position, 15);
  EXPECT_TRUE(same(pool.state(before), {.tokens = 3, .pages = 2, .sinks = 0, .dropped = 0, .position = 3}));
  pool.truncate(a, 4);
  EXPECT_EQ(pool.state(a).position, 14) << "the position of the first token that went";
  pool.truncate(a, 3);
  EXPECT_EQ(pool.state(a).position, 3);
  pool.check();
}

TEST(PagePool, TrimmingLeavesSharedPagesToOtherSequences) {
  PagePool pool({.pages = 16, .page_size = 4, .max_sequences = 2});
  const CachedSequence a = grown(pool, 24), b = pool.fork(a, 12).value();
  const Trim trimmed = pool.trim(a, 1, 4);
  EXPECT_EQ(trimmed.pages, 4);
  EXPECT_EQ(trimmed.freed_pages, 2);
  EXPECT_EQ(pool.pages(b), (Pages{0, 1, 2}));
}

TEST(PagePool, StatisticsCountSharedAndWasted) {
  PagePool pool({.pages = 16, .page_size = 4, .max_sequences = 4});
  EXPECT_EQ(pool.statistics().used_pages, 0);
  const CachedSequence a = grown(pool, 7);
  EXPECT_EQ(pool.statistics().wasted_tokens, 1);
  const CachedSequence b = pool.fork(a, 5).value();
  EXPECT_EQ(pool.statistics().wasted_tokens, 1) << "a reads further than b";
  const CachedSequence c = pool.fork(a, 2).value();
  const PagePoolStats all = pool.statistics();
  EXPECT_EQ(all.pages, 16);
  EXPECT_EQ(all.used_pages, 2);
  EXPECT_EQ(all.free_pages, 14);
  EXPECT_EQ(all.shared_pages, 2);
  EXPECT_EQ(all.table_entries, 5);
  EXPECT_EQ(all.sequences, 3);
  EXPECT_EQ(all.tokens, 14);
  EXPECT_EQ(all.wasted_tokens, 1) << "page 0 is full for a and b";
  pool.release(a);
  EXPECT_EQ(pool.statistics().wasted_tokens, 3);
  pool.release(b);
  EXPECT_EQ(pool.statistics().wasted_tokens, 2);
  pool.release(c);
  EXPECT_EQ(pool.statistics().used_pages, 0);
  EXPECT_EQ(pool.statistics().wasted_tokens, 0);
}

TEST(PagePool, StaleAndForeignHandlesAreErrors) {
  PagePool pool({.pages = 8, .page_size = 4, .max_sequences = 1}),
      other({.pages = 8, .page_size = 4, .max_sequences = 1});
  const CachedSequence old = grown(pool, 4), foreign = grown(other, 4);
  pool.release(old);
  const CachedSequence now = grown(pool, 4);
  EXPECT_EQ(now.slot, old.slot);
  const auto with = [](CachedSequence s, int64_t slot) { return s.slot = slot, s; };
  for (const CachedSequence bad :
       {old, foreign, CachedSequence{}, with(now, 1), with(now, -1), with(now, kLowest), with(now, kHuge)}) {
    expect_refused([&] { pool.append(bad, 1); }, "sequence", {"released"});
    expect_refused([&] { pool.fork(bad); }, "parent");
    expect_refused([&] { pool.truncate(bad, 0); }, "sequence");
    expect_refused([&] { pool.trim(bad, 0, 0); }, "sequence");
    expect_refused([&] { pool.release(bad); }, "sequence");
    expect_refused([&] { pool.state(bad); }, "sequence");
  }
  expect_refused([&] { pool.append(now, -1); }, "tokens", {"-1"});
  EXPECT_EQ(pool.state(now).tokens, 4);
  pool.check();
}

TEST(PagePool, ConfigurationsThatCannotBe) {
  const auto make = [](int64_t pages, int64_t page_size, int64_t sequences, int64_t max_pages = 0) {
    return [=] { PagePool({pages, page_size, sequences, max_pages}); };
  };
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, kHuge, kLowest}) {
    expect_refused(make(bad, 1, 1), "pages", {std::to_string(bad)});
    expect_refused(make(1, bad, 1), "page_size", {std::to_string(bad)});
    expect_refused(make(1, 1, bad), "max_sequences", {std::to_string(bad)});
    if (bad != 0) expect_refused(make(1, 1, 1, bad), "max_pages_per_sequence", {std::to_string(bad)});
  }
  expect_refused(make(1, 1 << 20, 1, 2048), "max_pages_per_sequence", {"2048", "2047"});
}

TEST(PagePool, LengthsEndWhereInt32Does) {
  PagePool pool({.pages = 4096, .page_size = 1 << 20, .max_sequences = 1});
  const CachedSequence a = grown(pool, int64_t{2047} << 20);
  EXPECT_EQ(pool.append(a, 1).fit, Fit::sequence_full);
  PagePool one({.pages = 3, .page_size = (int64_t{1} << 31) - 1, .max_sequences = 1});
  const CachedSequence b = grown(one, (int64_t{1} << 31) - 1);
  EXPECT_EQ(one.append(b, 1).fit, Fit::sequence_full);
  EXPECT_EQ(one.pages(b), Pages{0});
}

}  // namespace
}  // namespace cuflash
