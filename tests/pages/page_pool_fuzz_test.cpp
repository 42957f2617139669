// Random histories of page pools against a plain model: no leak, no double free, no lost token.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "error.h"
#include "tests/pages/page_pool_model.h"
#include "tests/properties/property.h"

namespace cuflash::test {
namespace {

using check::Choices;

PagePoolConfig random_config(Choices& choices) {
  PagePoolConfig config{};
  config.page_size = choices.one_of<int64_t>({1, 2, 3, 4, 7, 16});
  config.pages = choices.between(1, 24);
  config.max_sequences = choices.between(1, 6);
  config.max_pages_per_sequence = choices.chance(3) ? choices.between(1, 12) : 0;
  return config;
}

// One random operation, in words and done.
std::string step(ModelledPool& pool, int64_t page_size, Choices& choices, std::string& words) {
  enum : uint32_t { kStart, kAppend, kAppendMore, kFork, kTruncate, kTrim, kRelease, kOperations };
  const uint32_t operation = pool.size() == 0 ? uint32_t{kStart} : choices.below(kOperations);
  const auto n = pool.size() == 0 ? 0 : choices.below(static_cast<uint32_t>(pool.size()));
  switch (operation) {
    case kStart: words = "start"; return pool.start();
    case kAppend:
    case kAppendMore: {
      const int64_t tokens = choices.between(0, operation == kAppend ? 2 : 3 * page_size);
      words = join("append ", n, " ", tokens);
      return pool.append(n, tokens);
    }
    case kFork: {
      const int64_t tokens = choices.chance(2) ? choices.between(0, pool.tokens(n)) : -1;
      words = join("fork ", n, " ", tokens);
      return pool.fork(n, tokens);
    }
    case kTruncate: {
      const int64_t tokens = pool.tokens(n) - choices.between(0, std::min(pool.tokens(n), 2 * page_size));
      words = join("truncate ", n, " ", tokens);
      return pool.truncate(n, tokens);
    }
    case kTrim: {
      const int64_t sinks = choices.between(0, 2 * page_size), window = choices.between(0, pool.position(n) + 1);
      words = join("trim ", n, " ", sinks, " ", window);
      return pool.trim(n, sinks, window);
    }
    default: words = join("release ", n); return pool.release(n);
  }
}

std::string release_all(ModelledPool& pool) {
  while (pool.size() > 0) pool.release(pool.size() - 1);
  return pool.check();  // among others: nothing is used
}

std::string random_history(Choices& choices, int steps) {
  const PagePoolConfig config = random_config(choices);
  ModelledPool pool(config);
  std::string history = join(config.pages, " pages of ", config.page_size, ", ", config.max_sequences,
                             " sequences of at most ", config.max_pages_per_sequence, " pages");
  for (int n = 0; n < steps; ++n) {
    std::string words;
    std::string wrong = step(pool, config.page_size, choices, words);
    history += "; " + words;
    if (wrong.empty()) wrong = pool.check();
    if (!wrong.empty()) return wrong + ", after: " + history;
  }
  if (const std::string wrong = pool.use_released(); !wrong.empty()) return wrong + ", after: " + history;
  if (const std::string wrong = release_all(pool); !wrong.empty()) return wrong + ", all released after: " + history;
  return "";
}

TEST(PagePoolFuzz, ShortHistories) {
  property("a page pool does what the model does", 3000, [](Choices& choices) { return random_history(choices, 35); });
}

TEST(PagePoolFuzz, LongHistories) {
  constexpr int kSteps = 3000;
  for (int index = 0; index < scaled(40); ++index) {
    std::mt19937 engine(static_cast<uint32_t>(test_seed()) + static_cast<uint32_t>(index));
    std::vector<uint32_t> numbers(5 * kSteps);
    for (uint32_t& number : numbers) number = static_cast<uint32_t>(engine());
    Choices choices(numbers);
    const std::string wrong = random_history(choices, kSteps);
    ASSERT_EQ(wrong.substr(0, 2000), "") << "history " << index << ", reproduce: CUFLASH_TEST_SEED=" << test_seed();
  }
}

TEST(PagePoolFuzz, TheSameCallsGiveTheSamePages) {
  const auto pages_after = [](uint32_t seed) {
    std::mt19937 engine(seed);
    PagePool pool({.pages = 40, .page_size = 3, .max_sequences = 8});
    std::vector<CachedSequence> alive;
    std::vector<int32_t> seen;
    for (int n = 0; n < 500; ++n) {
      const size_t which = alive.empty() ? 0 : engine() % alive.size();
      if (alive.size() < 8 && engine() % 4 == 0) {
        alive.push_back((alive.empty() ? pool.start() : pool.fork(alive[which])).value());
      } else if (!alive.empty() && engine() % 8 == 0) {
        pool.release(alive[which]);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
      } else if (!alive.empty()) {
        (void)pool.append(alive[which], engine() % 7);
      }
      for (const CachedSequence s : alive)
        for (const int32_t page : pool.pages(s)) seen.push_back(page);
    }
    return seen;
  };
  EXPECT_EQ(pages_after(1), pages_after(1));
  EXPECT_NE(pages_after(1), pages_after(2));
}

}  // namespace
}  // namespace cuflash::test
