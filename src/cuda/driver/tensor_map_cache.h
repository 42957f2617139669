// Encoded tensor maps by all that is in them but the address. Calls have the same layouts over and over, at addresses that
// nobody may rely on; to replace the address of a map is less work for the driver than to encode one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/driver/types.h"

namespace cuflash::cuda {

// As the driver is told; a repeated dimension has extent 1.
struct TensorMapLayout {
  unsigned box_rows;  // first: it tells queries from keys where all else is equal
  CUtensorMapDataType type;
  std::array<uint64_t, 4> extents;  // dim, rows, heads, batch
  std::array<uint64_t, 3> strides;  // in bytes, of all but the first

  bool operator==(const TensorMapLayout&) const = default;
};

class TensorMapCache {
 public:
  constexpr TensorMapCache() = default;

  // Whether there is a map of this layout; it has the address that it was added with.
  bool find(const TensorMapLayout& layout, CUtensorMap& map) const {
    for (const Entry& entry : entries_)
      if (entry.layout == layout) return std::memcpy(&map, entry.map, sizeof map), true;
    return false;
  }
  // In place of the one that was added longest ago.
  void add(const TensorMapLayout& layout, const CUtensorMap& map) {
    Entry& entry = entries_[next_++ % kEntries];
    entry.layout = layout;
    std::memcpy(entry.map, &map, sizeof map);
  }

 private:
  // A call has two or three layouts, and a model few kinds of calls.
  static constexpr size_t kEntries = 16;
  struct Entry {
    TensorMapLayout layout{};                  // no box has 0 rows: nothing is found in an entry that is empty
    unsigned char map[sizeof(CUtensorMap)]{};  // not aligned: thread-local memory need not be as strictly as maps
  };

  std::array<Entry, kEntries> entries_{};
  size_t next_ = 0;
};

}  // namespace cuflash::cuda
