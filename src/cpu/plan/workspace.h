// The scratch of one call: the caller's workspace, or a block that the library allocates.
//
// The library keeps one block between calls, because fresh pages can cost more than a small problem. A call takes it by
// an atomic exchange, so of several concurrent calls one gets it and the others allocate. Blocks above
// kLargestKeptBlock are freed at once.
#pragma once

#include "cpu/plan/arena.h"
#include "error.h"

namespace cuflash::cpu {

inline constexpr size_t kLargestKeptBlock = size_t{64} << 20;

class Workspace {
 public:
  Workspace(const Execution& execution, size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

  // Used by tests: frees the kept block, so that the next call must allocate.
  static void release_kept_block();

 private:
  struct Block;
  Block* own_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace cuflash::cpu
