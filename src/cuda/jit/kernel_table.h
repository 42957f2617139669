// Loaded kernels by key. A lookup takes no lock; of the threads that miss the same kernel, one loads it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "cuda/driver/types.h"
#include "cuda/jit/kernel_key.h"

namespace cuflash::cuda {

class KernelTable {
 public:
  KernelTable() = default;
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // device: below 64. prepare(kernel) runs once for every key and device: it loads the kernel if it is null, and sets
  // it up for the device. If it throws, the next call tries again.
  template <class Prepare>
  CUkernel get(const KernelKey& key, int device, Prepare prepare) {
    Entry& entry = find(key);
    const uint64_t bit = uint64_t{1} << device;
    if (entry.ready.load(std::memory_order_acquire) & bit) return entry.kernel;
    const std::lock_guard lock(entry.making);
    if (!(entry.ready.load(std::memory_order_relaxed) & bit)) {
      prepare(entry.kernel);
      entry.ready.fetch_or(bit, std::memory_order_release);
    }
    return entry.kernel;
  }

 private:
  struct Entry {
    explicit Entry(const KernelKey& k) : key(k) {}
    const KernelKey key;
    Entry* next = nullptr;
    std::atomic<uint64_t> ready{0};  // one bit per device
    CUkernel kernel = nullptr;       // written before the first bit is set, and never again
    std::mutex making;
  };
  static constexpr size_t kBuckets = 1024;  // a process uses tens of kernels

  static size_t bucket_of(const KernelKey& key);
  Entry& find(const KernelKey& key);

  std::array<std::atomic<Entry*>, kBuckets> buckets_{};
  std::mutex inserting_;
};

}  // namespace cuflash::cuda
