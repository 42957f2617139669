// Lengths, tables and indices in host memory are read once: if another thread writes them during a call, nothing changes or
// the call is refused, but no access leaves a tensor.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "problem/snapshot.h"
#include "tests/problem/rejections_cache.h"
#include "tests/shared/support.h"

namespace cuflash::rejections {
namespace {

std::vector<Slot> integers_of(std::vector<Slot> slots) {
  std::erase_if(slots, [](const Slot& slot) { return slot.type() != DType::i32; });
  return slots;
}
int64_t elements_of(const Slot& slot) {
  int64_t count = 1;
  for (int d = 0; d < *slot.rank; ++d) count *= slot.shape[d];
  return count;
}
void write(const Slot& slot, int64_t n, int32_t value) {
  int32_t& place = static_cast<int32_t*>(const_cast<void*>(slot.data))[n];
  std::atomic_ref<int32_t>(place).store(value, std::memory_order_relaxed);
}

// Makes results depend on the rows that take part, since the inputs of these calls are zeros.
void fill_values(const std::vector<Slot>& slots) {
  for (const Slot& slot : slots)
    if (is_float(slot.type()))
      for (int64_t n = 0; n < elements_of(slot); ++n) {
        const double value = 0.25 * static_cast<double>(1 + (n * 7 + slot.name[0]) % 9);
        store_row(const_cast<void*>(slot.data), slot.type(), n, 1, &value);
      }
}

std::vector<std::string> bytes_of_outputs(const std::vector<Slot>& slots) {
  std::vector<std::string> all;
  for (const Slot& slot : slots)
    if (slot.is_output)
      all.emplace_back(static_cast<const char*>(slot.data),
                       static_cast<size_t>(elements_of(slot) * size_of(slot.type())));
  return all;
}

// The caller's threads, which start with writing garbage: everything has been checked by then.
struct Saboteur {
  std::vector<Slot> integers;
  int32_t garbage = kMax;
  int64_t called = 0;

  static void parallel_for(void* self, int64_t n, cuflash_parallel_body body, void* context) {
    auto& saboteur = *static_cast<Saboteur*>(self);
    ++saboteur.called;
    for (const Slot& slot : saboteur.integers)
      for (int64_t k = 0; k < elements_of(slot); ++k) write(slot, k, saboteur.garbage);
    for (int64_t index = 0; index < n; ++index) body(context, index);
  }
};

template <class MakeCall>
void expect_no_second_look(const MakeCall& make_call, const std::string& what) {
  const auto honest = make_call();
  fill_values(honest->slots());
  ASSERT_EQ(honest->run(), CUFLASH_OK) << what << ": " << cuflash_last_error();
  for (const int32_t garbage : {kMax, kMin, -1, 1 << 20}) {
    const auto call = make_call();
    fill_values(call->slots());
    Saboteur saboteur{integers_of(call->slots()), garbage};
    ASSERT_FALSE(saboteur.integers.empty()) << what;
    call->execution.parallel_for = Saboteur::parallel_for, call->execution.parallel_for_context = &saboteur;
    ASSERT_EQ(call->run(), CUFLASH_OK) << what << ": " << cuflash_last_error();
    EXPECT_GT(saboteur.called, 0) << what;
    EXPECT_TRUE(bytes_of_outputs(call->slots()) == bytes_of_outputs(honest->slots())) << what << " " << garbage;
  }
}

constexpr Direction kDirections[] = {Direction::forward, Direction::backward};

TEST(Snapshot, AttentionLooksAtLengthsOnce) {
  for (const Direction direction : kDirections)
    for (const Mode mode : {Mode::padded, Mode::packed})
      for (const int64_t batch : {2, 700}) {  // copies of 700 do not fit inline
        const Sizes sizes{.direction = direction, .mode = mode, .batch = batch};
        expect_no_second_look([&] { return std::make_unique<Call>(sizes); }, describe(sizes));
      }
}

TEST(Snapshot, CachesAreLookedUpOnce) {
  for_each_kind([](const CacheKind& kind) {
    if (kind.dtype == DType::f32 || kind.dtype == DType::bf16)
      expect_no_second_look([&] { return std::make_unique<CacheCall>(kind); }, describe(kind));
  });
}

// Another thread writes all the time: a call is served or refused, and accesses only its tensors.
template <class Calls>
void run_beside_a_writer(Calls& call) {
  const std::vector<Slot> integers = integers_of(call.slots());
  std::vector<std::vector<int32_t>> legal;
  for (const Slot& slot : integers)
    legal.emplace_back(static_cast<const int32_t*>(slot.data),
                       static_cast<const int32_t*>(slot.data) + elements_of(slot));
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (uint32_t step = 0; !done; ++step)
      for (size_t s = 0; s < integers.size(); ++s)
        for (size_t n = 0; n < legal[s].size(); ++n) {
          const int32_t hostile =
              step % 2 ? kMax - static_cast<int32_t>(step % 3) : -static_cast<int32_t>(step % 1000000);
          write(integers[s], static_cast<int64_t>(n), step % 8 < 6 ? legal[s][n] : hostile);
        }
  });
  for (int n = 0; n < 400; ++n) {
    const cuflash_status status = call.run();
    EXPECT_TRUE(status == CUFLASH_OK || status == CUFLASH_INVALID_ARGUMENT) << cuflash_last_error();
  }
  done = true;
  writer.join();
}

TEST(Snapshot, AttentionWithAConcurrentWriter) {
  for (const Direction direction : kDirections)
    for (const Mode mode : {Mode::padded, Mode::packed}) {
      Call call({.direction = direction, .mode = mode});
      run_beside_a_writer(call);
    }
}

TEST(Snapshot, CacheCallsWithAConcurrentWriter) {
  for (const bool paged : {false, true})
    for (const NewRows new_rows : {NewRows::none, NewRows::padded, NewRows::packed}) {
      CacheCall call(
          {.queries = new_rows == NewRows::packed ? Mode::packed : Mode::padded, .new_rows = new_rows, .paged = paged});
      run_beside_a_writer(call);
    }
}

// A table may be wider than its sequences need: only the used part is read, and the rest need not be valid memory.
TEST(Snapshot, OnlyUsedColumnsOfATableAreRead) {
  CacheCall call({.paged = true});
  std::vector<int32_t> narrow{1, 3, 7, 0};  // two columns of each sequence, without the third
  call.cache.block_table.data = narrow.data(), call.cache.block_table.stride[0] = 2;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

TEST(Snapshot, MemoryIsInlineThenAllocatedAndNeverShared) {
  Snapshot memory;
  std::vector<std::pair<int32_t*, int64_t>> taken;
  for (const int64_t count : {1, 0, 500, 7, 600, 5000, 3}) {
    taken.emplace_back(memory.take<int32_t>(count), count);
    std::fill_n(taken.back().first, count, static_cast<int32_t>(taken.size()));
  }
  for (size_t n = 0; n < taken.size(); ++n)
    for (int64_t k = 0; k < taken[n].second; ++k) ASSERT_EQ(taken[n].first[k], static_cast<int32_t>(n + 1));
  EXPECT_THROW(memory.take<int64_t>(std::numeric_limits<int64_t>::max()), std::bad_alloc);
}

}  // namespace
}  // namespace cuflash::rejections
