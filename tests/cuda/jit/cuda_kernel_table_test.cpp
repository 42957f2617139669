// The table of loaded kernels under many threads: each kernel is loaded once, and set up once per device.
#include "cuda/jit/kernel_table.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace cuflash::cuda {
namespace {

constexpr KernelType kForward{}, kBackward{};

KernelKey key(int number) {
  KernelKey k{&kForward, 90, {}};
  k.config[3] = number;
  return k;
}
CUkernel handle(int number) { return reinterpret_cast<CUkernel>(static_cast<uintptr_t>(number) * 16 + 16); }

TEST(KernelTable, MakesEachKernelOnceAndPreparesItOnceForEachDevice) {
  constexpr int kKernels = 3000, kDevices = 3, kThreads = 4;  // more kernels than buckets: lists grow
  KernelTable table;
  std::vector<std::atomic<int>> made(kKernels), prepared(kKernels * kDevices);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int step = 0; step < kKernels * kDevices; ++step) {
          const int n = (step + t * 17) % (kKernels * kDevices), number = n / kDevices, device = n % kDevices;
          const CUkernel got = table.get(key(number), device, [&](CUkernel& kernel) {
            if (!kernel) kernel = handle(number), ++made[static_cast<size_t>(number)];
            ++prepared[static_cast<size_t>(n)];
          });
          wrong += got != handle(number);
        }
      });
  }
  EXPECT_EQ(wrong, 0);
  for (const auto& count : made) ASSERT_EQ(count, 1);
  for (const auto& count : prepared) ASSERT_EQ(count, 1);
}

TEST(KernelTable, KeysDifferInEveryField) {
  KernelTable table;
  std::vector<KernelKey> keys{key(0)};
  for (size_t n = 0; n < keys[0].config.size(); ++n) keys.push_back(keys[0]), keys.back().config[n] = 77;
  keys.push_back(keys[0]), keys.back().arch = 80;
  keys.push_back(keys[0]), keys.back().type = &kBackward;
  for (int pass = 0; pass < 2; ++pass)
    for (size_t n = 0; n < keys.size(); ++n)
      EXPECT_EQ(table.get(keys[n], 0, [&](CUkernel& kernel) { kernel = handle(static_cast<int>(n)); }),
                handle(static_cast<int>(n)))
          << n;
}

TEST(KernelTable, AFailureIsTriedAgain) {
  KernelTable table;
  int tries = 0;
  const auto prepare = [&](CUkernel& kernel) {
    if (++tries == 1) throw std::runtime_error("no memory");
    kernel = handle(1);
  };
  EXPECT_THROW(table.get(key(1), 0, prepare), std::runtime_error);
  EXPECT_EQ(table.get(key(1), 0, prepare), handle(1));
  EXPECT_EQ(table.get(key(1), 0, prepare), handle(1));
  EXPECT_EQ(tries, 2);
}

TEST(KernelTable, TheLastDeviceHasABitOfItsOwn) {
  KernelTable table;
  for (const int device : {0, 31, 32, 63}) {
    int prepared = 0;
    for (int repeat = 0; repeat < 2; ++repeat)
      table.get(key(1), device, [&](CUkernel& kernel) { kernel = handle(1), ++prepared; });
    EXPECT_EQ(prepared, 1) << device;
  }
}

}  // namespace
}  // namespace cuflash::cuda
