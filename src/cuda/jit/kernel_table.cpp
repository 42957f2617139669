#include "cuda/jit/kernel_table.h"

namespace cuflash::cuda {

KernelTable::~KernelTable() {
  for (std::atomic<Entry*>& bucket : buckets_)
    for (Entry* entry = bucket.load(); entry;) {
      Entry* next = entry->next;
      delete entry;
      entry = next;
    }
}

size_t KernelTable::bucket_of(const KernelKey& key) {
  static_assert(sizeof key % sizeof(uint64_t) == 0);
  std::array<uint64_t, sizeof key / sizeof(uint64_t)> words;
  std::memcpy(words.data(), &key, sizeof key);
  uint64_t hash = 0;
  for (const uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
  return hash % kBuckets;
}

KernelTable::Entry& KernelTable::find(const KernelKey& key) {
  std::atomic<Entry*>& bucket = buckets_[bucket_of(key)];
  const auto search = [&]() -> Entry* {
    Entry* entry = bucket.load(std::memory_order_acquire);
    while (entry && !(entry->key == key)) entry = entry->next;
    return entry;
  };
  if (Entry* entry = search()) return *entry;
  const std::lock_guard lock(inserting_);
  if (Entry* entry = search()) return *entry;
  // The entry is linked in front of the list and then published, so that a reader that sees it sees the whole list.
  Entry* entry = new Entry(key);
  entry->next = bucket.load(std::memory_order_relaxed);
  bucket.store(entry, std::memory_order_release);
  return *entry;
}

}  // namespace cuflash::cuda
