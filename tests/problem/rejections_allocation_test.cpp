// Any failed allocation becomes an error code. This program replaces operator new with one that can be made to fail.
#include <cuflash/page_pool.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>

#include "cpu/plan/workspace.h"
#include "problem/tensor_rules.h"
#include "tests/problem/rejections_cache.h"
#include "tests/shared/support.h"

namespace {

thread_local int64_t allocations_left = -1;  // -1: no limit
thread_local int64_t failed = 0;

void* allocate(size_t bytes, size_t alignment) noexcept {
  if (allocations_left == 0) {
    ++failed;
    return nullptr;
  }
  if (allocations_left > 0) --allocations_left;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

// Not inlined: g++ would warn about the free() in an inlined delete.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace cuflash::rejections {
namespace {

// Fails all allocations from the first, then from the second, ... until a call succeeds. Returns how many a call makes.
// `otherwise` is its answer when nothing fails.
template <class MakeCall>
int64_t expect_every_failure_reported(const MakeCall& make_call, cuflash_status otherwise) {
  for (int64_t n = 0;; ++n) {
    const auto call = make_call();
    cpu::Workspace::release_kept_block();
    failed = 0;
    allocations_left = n;
    const cuflash_status status = call->run();
    allocations_left = -1;
    const bool out_of_memory = failed != 0 && status != otherwise;  // some allocations are optional
    EXPECT_EQ(status, out_of_memory ? CUFLASH_OUT_OF_MEMORY : otherwise)
        << "allocation " << n << ": " << cuflash_last_error();
    if (out_of_memory) {
      EXPECT_NE(std::string(cuflash_last_error()).find("memory"), std::string::npos) << cuflash_last_error();
      EXPECT_TRUE(call->outputs_untouched()) << "allocation " << n;
    }
    if (failed == 0) return n;
  }
}

class Allocation : public testing::TestWithParam<Direction> {
 protected:
  std::unique_ptr<Call> make_call() const { return std::make_unique<Call>(Sizes{.direction = GetParam()}); }
};

TEST_P(Allocation, FailureIsReportedAndTouchesNoOutput) {
  EXPECT_GT(expect_every_failure_reported([&] { return make_call(); }, CUFLASH_OK), 0);
}

TEST_P(Allocation, FailureInARefusalIsReportedToo) {
  const auto make_refused = [&] {
    auto call = make_call();
    call->attention.softcap = -1;
    return call;
  };
  EXPECT_GT(expect_every_failure_reported(make_refused, CUFLASH_INVALID_ARGUMENT), 0);
}

TEST_P(Allocation, TheNextCallUsesTheBlockOfTheOneBefore) {
  if (test::kAddressSanitized) GTEST_SKIP() << "no block is kept, so that this sanitizer sees the end of each";
  EXPECT_EQ(make_call()->run(), CUFLASH_OK);
  const auto call = make_call();
  failed = 0, allocations_left = 0;
  const cuflash_status status = call->run();
  allocations_left = -1;
  EXPECT_EQ(status, CUFLASH_OK) << cuflash_last_error();
  EXPECT_EQ(failed, 0);
}

// More than the block that is kept, and more than the library keeps.
TEST(KeptBlock, NeitherTooSmallNorTooLargeOnesAreUsed) {
  if (test::kAddressSanitized) GTEST_SKIP() << "no block is kept, so that this sanitizer sees the end of each";
  const auto takes_memory = [](size_t bytes) {
    allocations_left = 0, failed = 0;
    try {
      const cpu::Workspace workspace({}, bytes);
    } catch (const std::exception&) {}
    allocations_left = -1;
    return failed != 0;
  };
  cpu::Workspace::release_kept_block();
  { const cpu::Workspace first({}, 1000); }
  EXPECT_FALSE(takes_memory(1000));
  EXPECT_TRUE(takes_memory(1001));
  { const cpu::Workspace large({}, cpu::kLargestKeptBlock + 1); }
  EXPECT_TRUE(takes_memory(1));
}

TEST_P(Allocation, AWorkspaceMakesACallThatAllocatesNothing) {
  const auto make_with_workspace = [&] {
    auto call = make_call();
    size_t bytes = 0;
    EXPECT_EQ(call->workspace_size(&bytes), CUFLASH_OK);
    call->execution.workspace = call->scratch(bytes), call->execution.workspace_size = bytes;
    return call;
  };
  EXPECT_EQ(make_with_workspace()->run(), CUFLASH_OK);  // makes whatever is made once per process
  EXPECT_EQ(expect_every_failure_reported(make_with_workspace, CUFLASH_OK), 0);
}

TEST(CacheAllocation, FailureIsReportedAndTouchesNeitherOutputNorCache) {
  for_each_kind([](const CacheKind& kind) {
    expect_every_failure_reported([&] { return std::make_unique<CacheCall>(kind); }, CUFLASH_OK);
  });
}

TEST(CacheAllocation, AWorkspaceMakesACallThatAllocatesNothing) {
  for_each_kind([](const CacheKind& kind) {
    const auto make_with_workspace = [&] {
      auto call = std::make_unique<CacheCall>(kind);
      size_t bytes = 0;
      EXPECT_EQ(call->workspace_size(&bytes), CUFLASH_OK);
      call->execution.workspace = call->scratch(bytes), call->execution.workspace_size = bytes;
      return call;
    };
    EXPECT_EQ(make_with_workspace()->run(), CUFLASH_OK);  // makes whatever is made once per process
    EXPECT_EQ(expect_every_failure_reported(make_with_workspace, CUFLASH_OK), 0) << describe(kind);
  });
}

// Fails all allocations of a page pool from the first, then from the second, ...
TEST(PagePoolAllocation, CreationThatFailsLeavesNothing) {
  cuflash_page_pool_config config;
  cuflash_page_pool_config_init(&config);
  config.pages = 10, config.page_size = 4, config.max_sequences = 3;
  cuflash_status status = CUFLASH_OUT_OF_MEMORY;
  for (int64_t n = 0; status != CUFLASH_OK; ++n) {
    cuflash_page_pool* pool = nullptr;
    failed = 0, allocations_left = n;
    status = cuflash_page_pool_create(&config, &pool);
    allocations_left = -1;
    EXPECT_EQ(status, failed ? CUFLASH_OUT_OF_MEMORY : CUFLASH_OK) << cuflash_last_error();
    EXPECT_EQ(pool != nullptr, status == CUFLASH_OK);
    cuflash_page_pool_destroy(pool);
  }
}

TEST(PagePoolAllocation, ATableBeyondMemoryNamesItsSizes) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers end a program that asks for so much";
  try {
    PagePool({.pages = 1, .page_size = 1, .max_sequences = 1 << 20, .max_pages_per_sequence = kMaxExtent});
    ADD_FAILURE() << "got 2^53 bytes";
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), CUFLASH_OUT_OF_MEMORY);
    EXPECT_NE(std::string(error.what()).find("1048576 sequences"), std::string::npos) << error.what();
  }
}

TEST(PagePoolAllocation, NothingElseAllocates) {
  PagePool pool({.pages = 40, .page_size = 4, .max_sequences = 8});
  failed = 0, allocations_left = 0;
  for (int round = 0; round < 3; ++round) {
    const CachedSequence a = pool.start().value();
    for (int n = 0; n < 100; ++n) EXPECT_TRUE(pool.append(a, 1));
    const CachedSequence b = pool.fork(a, 99).value();
    EXPECT_TRUE(pool.append(b, 2).copy);
    EXPECT_EQ(pool.append(b, 56).fit, Fit::pool_full);
    EXPECT_EQ(pool.append(b, 100).fit, Fit::sequence_full);
    pool.truncate(b, 50);
    pool.trim(a, 4, 20);
    int32_t table[2 * 16], lengths[2];
    const CachedSequence both[] = {a, b};
    pool.write_block_table(both, contiguous(table, 2, 16));
    pool.write_lengths(both, contiguous(lengths, 2));
    pool.release(a);
    pool.release(b);
  }
  allocations_left = -1;
  EXPECT_EQ(failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Directions, Allocation, testing::Values(Direction::forward, Direction::backward),
                         [](const auto& instance) { return name_of(instance.param); });

int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(ThreadPool, StartsAfterItsFirstAllocationsFailed) {
  const auto make_large = [] {
    auto call = std::make_unique<Call>(Sizes{.batch = 4, .group = 3, .len_q = 60, .len_k = 60});
    call->execution.num_threads = 4;
    return call;
  };
  expect_every_failure_reported(make_large, CUFLASH_OK);
  EXPECT_EQ(make_large()->run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_GE(threads_of_this_process(), 4);
}

}  // namespace
}  // namespace cuflash::rejections
