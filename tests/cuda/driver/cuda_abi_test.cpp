// Compares our declarations of CUDA's driver interface with cuda.h, if that is installed.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/driver.h"

#if __has_include(<cuda.h>)
namespace cuflash::cuda {
namespace {

// The sizes of a function's result and parameters.
template <class Result, class... Parameters>
std::vector<size_t> sizes_of(Result (*)(Parameters...)) {
  return {sizeof(Result), sizeof(Parameters)...};
}

struct Function {
  std::string symbol;
  std::vector<size_t> sizes;
  bool operator==(const Function&) const = default;
};
// Made before cuda.h turns the names into macros.
#define CUFLASH_OURS(name, symbol, ...) {#symbol, sizes_of(decltype(Driver::name){nullptr})},
const std::vector<Function> kOurs{CUFLASH_DRIVER_FUNCTIONS(CUFLASH_OURS)
                                      CUFLASH_OPTIONAL_DRIVER_FUNCTIONS(CUFLASH_OURS)};
constexpr size_t kOurDevice = sizeof(CUdevice), kOurPointer = sizeof(CUdeviceptr);

}  // namespace
}  // namespace cuflash::cuda

#include <cuda.h>

namespace cuflash::cuda {
namespace {

#define CUFLASH_TEXT(name) #name
#define CUFLASH_SYMBOL(name) CUFLASH_TEXT(name)
#define CUFLASH_THEIRS(name, symbol, ...) {CUFLASH_SYMBOL(name), sizes_of(decltype(&::name){nullptr})},
const std::vector<Function> kTheirs{CUFLASH_DRIVER_FUNCTIONS(CUFLASH_THEIRS)
                                        CUFLASH_OPTIONAL_DRIVER_FUNCTIONS(CUFLASH_THEIRS)};

// The symbol that a name stands for in cuda.h: another version of a function may have another meaning.
TEST(CudaAbi, FunctionsHaveTheSameSymbolsAndParameters) {
  ASSERT_GT(kOurs.size(), 30u);
  for (size_t n = 0; n < kOurs.size(); ++n) {
    EXPECT_EQ(kOurs[n].symbol, kTheirs[n].symbol);
    EXPECT_EQ(kOurs[n].sizes, kTheirs[n].sizes) << kOurs[n].symbol;
  }
}

#define EXPECT_SAME_VALUE(name) EXPECT_EQ(static_cast<int>(::name), static_cast<int>(cuda::name)) << #name

TEST(CudaAbi, ConstantsAreTheSame) {
  EXPECT_SAME_VALUE(CUDA_SUCCESS);
  EXPECT_SAME_VALUE(CUDA_ERROR_INVALID_VALUE);
  EXPECT_SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_SAME_VALUE(CUDA_ERROR_DEINITIALIZED);
  EXPECT_SAME_VALUE(CUDA_ERROR_NO_DEVICE);
  EXPECT_SAME_VALUE(CUDA_ERROR_INVALID_IMAGE);
  EXPECT_SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_SAME_VALUE(CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_SAME_VALUE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  EXPECT_SAME_VALUE(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  EXPECT_SAME_VALUE(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  EXPECT_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_SAME_VALUE(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  EXPECT_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_SAME_VALUE(CU_POINTER_ATTRIBUTE_CONTEXT);
  EXPECT_SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED);
  EXPECT_SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_SAME_VALUE(CU_MEMORYTYPE_HOST);
  EXPECT_SAME_VALUE(CU_MEMORYTYPE_DEVICE);
  EXPECT_SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_INTERLEAVE_NONE);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_128B);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  EXPECT_SAME_VALUE(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  EXPECT_EQ(CU_LAUNCH_PARAM_END, kLaunchParamEnd);
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_POINTER, kLaunchParamBufferPointer);
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_SIZE, kLaunchParamBufferSize);
}

#define EXPECT_SAME_FIELD(type, field) EXPECT_EQ(offsetof(::type, field), offsetof(cuda::type, field)) << #field

TEST(CudaAbi, TypesHaveTheSameLayout) {
  EXPECT_SAME_FIELD(CUlaunchConfig, gridDimX);
  EXPECT_SAME_FIELD(CUlaunchConfig, gridDimY);
  EXPECT_SAME_FIELD(CUlaunchConfig, gridDimZ);
  EXPECT_SAME_FIELD(CUlaunchConfig, blockDimX);
  EXPECT_SAME_FIELD(CUlaunchConfig, blockDimY);
  EXPECT_SAME_FIELD(CUlaunchConfig, blockDimZ);
  EXPECT_SAME_FIELD(CUlaunchConfig, sharedMemBytes);
  EXPECT_SAME_FIELD(CUlaunchConfig, hStream);
  EXPECT_SAME_FIELD(CUlaunchConfig, attrs);
  EXPECT_SAME_FIELD(CUlaunchConfig, numAttrs);
  EXPECT_EQ(sizeof(::CUlaunchConfig), sizeof(cuda::CUlaunchConfig));
  EXPECT_SAME_FIELD(CUlaunchAttribute, id);
  EXPECT_SAME_FIELD(CUlaunchAttribute, value);
  EXPECT_EQ(sizeof(::CUlaunchAttribute), sizeof(cuda::CUlaunchAttribute));
  EXPECT_EQ(sizeof(::CUtensorMap), sizeof(cuda::CUtensorMap));
  EXPECT_LE(alignof(::CUtensorMap), alignof(cuda::CUtensorMap));  // 64 before CUDA 13
  EXPECT_EQ(sizeof(::CUdevice), kOurDevice);
  EXPECT_EQ(sizeof(::CUdeviceptr), kOurPointer);
}

}  // namespace
}  // namespace cuflash::cuda
#else
TEST(CudaAbi, IsComparedWithCudaH) { GTEST_SKIP() << "cuda.h was not found when this test was built"; }
#endif
