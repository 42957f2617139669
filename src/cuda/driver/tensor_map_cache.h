// Encoded tensor maps, keyed by everything in them except the address. Calls repeat the same layouts at changing
// addresses, and replacing the address of a map is less work for the driver than encoding a new one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/driver/types.h"

namespace cuflash::cuda {

// A layout as it is passed to the driver; a repeated dimension has extent 1.
struct TensorMapLayout {
  unsigned box_rows;  // compared first, because it often differs where all else is equal
  unsigned box_columns, box_heads;
  CUtensorMapDataType type;
  std::array<uint64_t, 4> extents;  // dim, rows, heads, batch
  std::array<uint64_t, 3> strides;  // strides in bytes of all dimensions but the first

  bool operator==(const TensorMapLayout&) const = default;
};

class TensorMapCache {
 public:
  constexpr TensorMapCache() = default;

  // Whether the cache has a map of this layout; the map has the address with which it was added.
  bool find(const TensorMapLayout& layout, CUtensorMap& map) const {
    for (const Entry& entry : entries_)
      if (entry.layout == layout) return std::memcpy(&map, entry.map, sizeof map), true;
    return false;
  }
  // Replaces the oldest entry.
  void add(const TensorMapLayout& layout, const CUtensorMap& map) {
    Entry& entry = entries_[next_++ % kEntries];
    entry.layout = layout;
    std::memcpy(entry.map, &map, sizeof map);
  }

 private:
  // A call has two or three layouts, and a model has few kinds of calls.
  static constexpr size_t kEntries = 16;
  struct Entry {
    TensorMapLayout layout{};                  // no box has 0 rows, so an empty entry matches nothing
    unsigned char map[sizeof(CUtensorMap)]{};  // bytes: thread-local memory may be aligned less strictly than maps
  };

  std::array<Entry, kEntries> entries_{};
  size_t next_ = 0;
};

}  // namespace cuflash::cuda
