// Tensor maps with a libcuda that writes its arguments into them: no GPU is needed.
#include "cuda/driver/tensor_map.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cuda/driver/driver.h"
#include "error.h"
#include "tests/cuda/recording_driver/libcuda.h"
#include "tests/shared/counted_allocations.h"
#include "tests/shared/processes.h"

namespace cuflash::cuda {
namespace {

using test::FakeTensorMap;
using test::RecordingDriver;

RecordingDriver* open_fake(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  auto* get = library ? reinterpret_cast<RecordingDriver* (*)()>(::dlsym(library, "recording_driver")) : nullptr;
  return get ? get() : nullptr;
}

const void* place(uintptr_t number) { return reinterpret_cast<const void*>(number * 16); }

// A contiguous bf16 tensor [2, 4, rows, 64] at some address.
constexpr int64_t kHeads = 4, kBatch = 2, kDim = 64;
ConstRows rows_at(const void* data, int64_t rows) {
  return {data, DType::bf16, kHeads * rows * kDim, rows * kDim, kDim};
}
FakeTensorMap read(const TensorMap& map) {
  FakeTensorMap content;
  std::memcpy(&content, &map, sizeof content);
  return content;
}
FakeTensorMap map_of(const void* data, int64_t rows, int box_rows = 64) {
  return read(tensor_map(rows_at(data, rows), {kDim, rows, kHeads, kBatch}, box_rows));
}
FakeTensorMap expected(const void* data, int64_t rows, int box_rows = 64) {
  const auto n = static_cast<uint64_t>(rows);
  return {data,
          {kDim, n, kHeads, kBatch},
          {kDim * 2, n * kDim * 2, n * kDim * kHeads * 2},
          {64, static_cast<unsigned>(box_rows), 1, 1},
          CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
}

// Before this process looks for a driver, which it does once.
TEST(OldDriver, WithoutAFunctionThatReplacesAddressesEachMapIsEncoded) {
  const int result = test::in_child([] {
    const RecordingDriver* old = open_fake(CUFLASH_FAKE_OLD_LIBCUDA);
    if (!old || driver().cuTensorMapReplaceAddress) return 1;
    for (uintptr_t n = 1; n <= 3; ++n)
      if (!(map_of(place(n), 100) == expected(place(n), 100))) return 2;
    return old->encoded == 3 && old->replaced == 0 ? 0 : 3;
  });
  EXPECT_EQ(result, 0);
}

class TensorMaps : public testing::Test {
 protected:
  void SetUp() override {
    cuda = open_fake(CUFLASH_FAKE_LIBCUDA);
    ASSERT_NE(cuda, nullptr) << ::dlerror();
    *cuda = {};
  }
  // Each test runs in a new thread, whose cache is empty.
  template <class Body>
  static void in_thread(Body body) {
    std::thread(body).join();
  }

  RecordingDriver* cuda = nullptr;
};

TEST_F(TensorMaps, ALayoutIsEncodedOnceAndHasTheAddressOfEachCall) {
  in_thread([&] {
    for (uintptr_t n = 1; n <= 100; ++n) EXPECT_EQ(map_of(place(n), 100), expected(place(n), 100)) << n;
    EXPECT_EQ(map_of(place(1), 100), expected(place(1), 100));
  });
  EXPECT_EQ(cuda->encoded, 1);
  EXPECT_EQ(cuda->replaced, 100);
}

TEST_F(TensorMaps, RowsOfNumbersAreBoxesOfTheirOwn) {
  in_thread([&] {
    for (uintptr_t n = 1; n <= 3; ++n)
      EXPECT_EQ(
          read(tensor_map(static_cast<const float*>(place(n)), 7, 132)),
          (FakeTensorMap{place(n), {132, 7, 1, 1}, {528, 528, 528}, {132, 1, 1, 1}, CU_TENSOR_MAP_DATA_TYPE_FLOAT32}));
  });
  EXPECT_EQ(cuda->encoded, 1);
}

TEST_F(TensorMaps, LayoutsThatDifferInAnythingAreNotMixed) {
  in_thread([&] {
    const ConstRows rows = rows_at(place(1), 100);
    const RowsExtent extent{kDim, 100, kHeads, kBatch};
    std::vector<FakeTensorMap> maps{read(tensor_map(rows, extent, 64)), read(tensor_map(rows, extent, 128))};
    const auto with = [&](auto change) {
      ConstRows r = rows;
      RowsExtent e = extent;
      change(r, e);
      maps.push_back(read(tensor_map(r, e, 64)));
    };
    with([](ConstRows& r, RowsExtent&) { r.dtype = DType::f16; });
    with([](ConstRows& r, RowsExtent&) { r.row_stride += 8; });
    with([](ConstRows& r, RowsExtent&) { r.head_stride += 8; });
    with([](ConstRows& r, RowsExtent&) { r.batch_stride += 8; });
    with([](ConstRows&, RowsExtent& e) { e.dim -= 1; });
    with([](ConstRows&, RowsExtent& e) { e.rows -= 1; });
    with([](ConstRows&, RowsExtent& e) { e.heads -= 1; });
    with([](ConstRows&, RowsExtent& e) { e.batch -= 1; });
    with([](ConstRows& r, RowsExtent&) { r.head_stride = 0; });
    with([](ConstRows& r, RowsExtent&) { r.batch_stride = 0; });
    EXPECT_EQ(cuda->encoded, static_cast<int>(maps.size()));
    for (size_t a = 0; a < maps.size(); ++a)
      for (size_t b = 0; b < a; ++b) EXPECT_FALSE(maps[a] == maps[b]) << a << " and " << b;
  });
}

TEST_F(TensorMaps, RepeatedDimensionsHaveOneEntryWhateverTheirCount) {
  in_thread([&] {
    ConstRows shared = rows_at(place(1), 100);
    shared.head_stride = shared.batch_stride = 0;
    for (uintptr_t n = 1; n <= 3; ++n) {
      shared.data = place(n);
      const FakeTensorMap map = read(tensor_map(shared, {kDim, 100, kHeads + static_cast<int64_t>(n), kBatch}, 64));
      EXPECT_EQ(map, (FakeTensorMap{place(n),
                                    {kDim, 100, 1, 1},
                                    {kDim * 2, kDim * 2, kDim * 2},
                                    {64, 64, 1, 1},
                                    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16}));
    }
  });
  EXPECT_EQ(cuda->encoded, 1);
}

TEST_F(TensorMaps, ThereIsRoomForTheLayoutsOfAModelAndNoMore) {
  in_thread([&] {
    const int64_t before = allocations;
    constexpr int64_t kLayouts = 1000;
    for (int64_t rows = 1; rows <= kLayouts; ++rows) EXPECT_EQ(map_of(place(1), rows), expected(place(1), rows));
    EXPECT_EQ(cuda->encoded, kLayouts);
    for (int64_t rows = kLayouts; rows > kLayouts - 12; --rows)
      EXPECT_EQ(map_of(place(2), rows), expected(place(2), rows));
    EXPECT_EQ(cuda->encoded, kLayouts) << "the last ones are there";
    EXPECT_EQ(map_of(place(3), 1), expected(place(3), 1));
    EXPECT_EQ(cuda->encoded, kLayouts + 1) << "the first one is not";
    EXPECT_EQ(allocations, before);
  });
}

TEST_F(TensorMaps, AnAddressThatIsNotReplacedIsEncoded) {
  in_thread([&] {
    EXPECT_EQ(map_of(place(1), 100), expected(place(1), 100));
    cuda->replace_result = CUDA_ERROR_INVALID_VALUE;
    EXPECT_EQ(map_of(place(2), 100), expected(place(2), 100));
    EXPECT_EQ(cuda->encoded, 2);
    cuda->replace_result = 0;
    EXPECT_EQ(map_of(place(3), 100), expected(place(3), 100));
    EXPECT_EQ(cuda->encoded, 2);
  });
}

TEST_F(TensorMaps, WhatTheDriverRefusesIsAnErrorAndNotKept) {
  in_thread([&] {
    cuda->encode_result = CUDA_ERROR_INVALID_VALUE;
    EXPECT_THROW(map_of(place(1), 100), FlashAttentionError);
    cuda->encode_result = 0;
    EXPECT_EQ(map_of(place(1), 100), expected(place(1), 100));
    EXPECT_EQ(cuda->encoded, 2);
  });
}

TEST_F(TensorMaps, ThreadsDoNotMeet) {
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (uintptr_t thread = 1; thread <= 4; ++thread)
      threads.emplace_back([&wrong, thread] {
        for (uintptr_t n = 0; n < 1000; ++n) {
          const void* data = place(thread + 8 * n);
          const auto rows = static_cast<int64_t>(1 + n % 20);
          wrong += !(map_of(data, rows) == expected(data, rows));
        }
      });
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace cuflash::cuda
