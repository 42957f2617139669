// Driver, devices, kernel cache and launch with a libcuda that records its calls: no GPU is needed.
#include "cuda/launch/launch.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cuda/driver/device.h"
#include "cuda/families/registry.h"
#include "cuda/jit/binaries.h"
#include "error.h"
#include "tests/cuda/recording_driver/libcuda.h"
#include "tests/shared/counted_allocations.h"
#include "tests/shared/processes.h"
#include "tests/shared/support.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::cuda {
namespace {

using test::context;

// One kernel per test, so that each test sees a first launch.
Launch launch_number(int number) {
  ForwardConfig config{Element::bf16, 64, 64, 64, 64, 4, 1, 1, 1, 0, number};
  return {key_of(kernel_type("forward"), arch_named("sm_90a"), config), 7, 3, 2, 128, 50000};
}
constexpr int kKernels = 20;

void launch_all(std::initializer_list<const Launch*> launches, std::string_view params = "params", int device = 0,
                void* stream = nullptr) {
  struct Bytes {
    std::array<char, 16> text{};
  } bytes;
  params.copy(bytes.text.data(), bytes.text.size());
  KernelParams sent;
  sent.set([&] { return bytes; }, params.size() + 1);
  launch(DeviceGuard(device), std::span(launches.begin(), launches.size()), sent, stream);
}

void* open_fake() { return ::dlopen(CUFLASH_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL); }
template <class Function>
Function* fake(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(open_fake(), name));
}

// The status and the message of a failure.
std::pair<cuflash_status, std::string> failure(auto call) {
  try {
    call();
  } catch (const FlashAttentionError& error) {
    return {error.status(), error.what()};
  }
  return {CUFLASH_OK, ""};
}

// Each case runs in a child process, before this process looks for a driver: a process looks once.
int driver_in_child(const char* variable, const char* value, std::initializer_list<const char*> parts) {
  return test::in_child([&] {
    ::setenv(variable, value, 1);
    if (!open_fake()) return 1;
    const auto [status, text] = failure([] { driver(); });
    if (status != CUFLASH_NO_DEVICE) return 2;
    int missing = 0;
    for (const char* part : parts) missing += text.find(part) == std::string::npos;
    return missing ? 3 : 0;
  });
}

TEST(DriverState, ATooOldDriverIsRefusedWithBothVersions) {
  EXPECT_EQ(driver_in_child("RECORDING_VERSION", "12020", {"CUDA 12.3", "is for CUDA 12.2", "libcuda.so.1"}), 0);
}

TEST(DriverState, ADriverWithoutADeviceIsRefused) {
  EXPECT_EQ(driver_in_child("RECORDING_INIT", "100", {"cannot be initialised", "a made-up error", "100"}), 0);
}

class Launching : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EXPECT_FALSE(driver_is_loaded());
    EXPECT_FALSE(driver_is_loaded());  // remembered
    ASSERT_TRUE(open_fake()) << ::dlerror();
    EXPECT_TRUE(driver_is_loaded());  // noticed although the last answer was no
    static test::TempDir dir;
    std::vector<ArchiveEntry> entries;
    for (int n = 0; n < kKernels; ++n) {
      const Program program = program_of(launch_number(n).kernel);
      entries.push_back({pack_key(program), program.name, join("code ", n)});
    }
    ::setenv("CUFLASH_PACK", dir.write("pack", archive_bytes(entries)).c_str(), 1);
    ::setenv("CUFLASH_CACHE_DIR", dir.file("cache").c_str(), 1);
    ::setenv("CUFLASH_JIT", "off", 1);
  }
  void SetUp() override {
    cuda = fake<test::RecordingDriver*()>("recording_driver")();
    contexts = fake<std::vector<CUcontext>*()>("fake_contexts")();
    capture_mode = fake<int*()>("fake_capture_mode")();
    *cuda = {};
    cuda->launches.reserve(100);
    contexts->clear();
    *capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  }
  static void go(int device, int number, void* stream = nullptr) {
    const Launch one = launch_number(number);
    launch_all({&one}, "params", device, stream);
  }

  test::RecordingDriver* cuda = nullptr;
  std::vector<CUcontext>* contexts = nullptr;
  int* capture_mode = nullptr;
};

TEST_F(Launching, PassesOnWhatItIsGiven) {
  *contexts = {context(10)};
  int stream = 0;
  go(0, 0, &stream);
  ASSERT_EQ(cuda->launches.size(), 1u);
  const test::FakeLaunch& launched = cuda->launches[0];
  EXPECT_EQ(launched.device, 0);
  EXPECT_EQ(launched.grid_x, 7u);
  EXPECT_EQ(launched.grid_y, 3u);
  EXPECT_EQ(launched.grid_z, 2u);
  EXPECT_EQ(launched.threads, 128u);
  EXPECT_EQ(launched.shared_bytes, 50000u);
  EXPECT_EQ(launched.stream, &stream);
  EXPECT_EQ(launched.params, std::string("params", sizeof "params"));
  EXPECT_EQ(cuda->loaded, std::vector<std::string>{"code 0"});
}

TEST_F(Launching, AnEmptyGridDoesNothing) {
  Launch empty = launch_number(1);
  empty.grid_x = 0;
  launch_all({&empty});
  EXPECT_TRUE(cuda->launches.empty());
  EXPECT_TRUE(cuda->loaded.empty());
}

TEST_F(Launching, ACurrentContextOfTheDeviceIsUsedEvenIfItIsNotThePrimaryOne) {
  *contexts = {context(11), context(20)};  // 20: not the primary context of device 0
  go(0, 2);
  EXPECT_EQ(cuda->pushes, 0);
  EXPECT_EQ(cuda->launches.at(0).device, 0);
  EXPECT_EQ(contexts->size(), 2u);
}

TEST_F(Launching, AnotherDeviceIsCurrentForTheCallOnly) {
  *contexts = {context(10)};
  go(1, 3);
  EXPECT_EQ(cuda->launches.at(0).device, 1);
  EXPECT_EQ(*contexts, std::vector{context(10)});
  EXPECT_EQ(cuda->pushes, 1);
  EXPECT_EQ(cuda->pops, 1);
}

TEST_F(Launching, AThreadWithoutAContextGetsOneForTheCall) {
  std::thread([&] {
    go(1, 4);
    EXPECT_TRUE(fake<std::vector<CUcontext>*()>("fake_contexts")()->empty());
  }).join();
  EXPECT_EQ(cuda->launches.at(0).device, 1);
}

TEST_F(Launching, CodeIsLoadedOnceAndSetUpOnceForEachDevice) {
  for (int repeat = 0; repeat < 3; ++repeat)
    for (const int device : {0, 1}) go(device, 5);
  EXPECT_EQ(cuda->launches.size(), 6u);
  EXPECT_EQ(cuda->loaded.size(), 1u);
  ASSERT_EQ(cuda->shared.size(), 2u);
  for (const auto& [where, values] : cuda->shared) EXPECT_EQ(values, std::vector{50000}) << where.second;
}

TEST_F(Launching, ManyThreadsLoadAKernelOnce) {
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 4; ++n) threads.emplace_back([&] { device(0), device(1); });
  }
  cuda->launches.shrink_to_fit();
  *cuda = {};  // no room: launches are not recorded, which would be a race here
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 4; ++n)
      threads.emplace_back([&] {
        const Launch same = launch_number(6);
        for (int repeat = 0; repeat < 100; ++repeat) launch_all({&same});
      });
  }
  EXPECT_EQ(cuda->loaded.size(), 1u);
}

TEST_F(Launching, LoadingDuringCaptureIsAllowedAndLeavesTheModeAsItWas) {
  *capture_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  go(0, 7);
  EXPECT_EQ(cuda->capture_modes, std::vector<int>{CU_STREAM_CAPTURE_MODE_RELAXED});
  EXPECT_EQ(*capture_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST_F(Launching, AFailedLaunchNamesTheKernelAndRestoresTheContext) {
  *contexts = {context(10)};
  cuda->launch_result = CUDA_ERROR_OUT_OF_MEMORY;
  const auto [status, text] = failure([&] { go(1, 8); });
  EXPECT_EQ(status, CUFLASH_OUT_OF_MEMORY);
  for (const char* part : {"forward:sm_90a:bf16", "CUDA_ERROR_FAKE", "a made-up error"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(*contexts, std::vector{context(10)});
}

TEST_F(Launching, CodeThatTheDriverRefusesIsExplainedAndTriedAgain) {
  cuda->load_result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  const auto [status, text] = failure([&] { go(0, 9); });
  EXPECT_EQ(status, CUFLASH_NO_DEVICE);
  for (const char* part : {"from the pack", "not accepted by the driver (CUDA 12.3)"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(*capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  cuda->load_result = 0;
  go(0, 9);
  EXPECT_EQ(cuda->launches.size(), 1u);
}

TEST_F(Launching, AKernelThatIsNotInThePackIsRefused) {
  const auto [status, text] = failure([&] { go(0, kKernels); });
  EXPECT_EQ(status, CUFLASH_NO_DEVICE);
  EXPECT_NE(text.find("cuflash pack --arch sm_90a --kernel forward:sm_90a:"), std::string::npos) << text;
}

TEST_F(Launching, SeveralKernelsAreEnqueuedInOrderOrNotAtAll) {
  const Launch first = launch_number(11), second = launch_number(12), missing = launch_number(kKernels);
  Launch none = launch_number(13);
  none.grid_x = 0;
  EXPECT_EQ(failure([&] { launch_all({&first, &missing}); }).first, CUFLASH_NO_DEVICE);
  EXPECT_TRUE(cuda->launches.empty());
  launch_all({&first, &none, &second});
  EXPECT_EQ(cuda->launches.size(), 2u);
  EXPECT_EQ(cuda->loaded, (std::vector<std::string>{"code 11", "code 12"}));
}

TEST_F(Launching, DevicesThatCannotServeAreRefused) {
  EXPECT_NE(failure([] { device(2); }).second.find("compute capability is 7.5"), std::string::npos);
  EXPECT_NE(failure([] { device(3); }).second.find("CUDA shows 3"), std::string::npos);
  for (const int ordinal : {-1, 64, 1000}) EXPECT_EQ(failure([&] { device(ordinal); }).first, CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(device(1).arch.number(), 90);
  EXPECT_EQ(device(1).num_sms, 132);
}

// The cost of launching a loaded kernel in addition to the driver's call.
TEST_F(Launching, ACachedLaunchAllocatesNothingAndIsShort) {
  *contexts = {context(10)};
  const Launch cached = launch_number(10);
  launch_all({&cached});
  cuda->launches = {};  // no room: the fake does nothing
  constexpr int kCalls = 1000, kRounds = 20;
  double best = 1e9;
  const int64_t before = allocations;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int n = 0; n < kCalls; ++n) launch_all({&cached});
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / kCalls);
  }
  EXPECT_EQ(allocations - before, 0);
  RecordProperty("nanoseconds", static_cast<int>(best));
  if (!test::kSanitized) {  // sanitizers add time
    EXPECT_LT(best, 2000) << "nanoseconds";
  }
}

}  // namespace
}  // namespace cuflash::cuda
