// The scratch of one call: the caller's workspace, or a block of the library's own.
//
// The library keeps one block between calls, since fresh pages can cost more than a small problem: taking it is an atomic
// exchange, so of several calls at a time one has it and the others allocate. Larger blocks are given back at once.
#pragma once

#include "cpu/arena.h"
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

  // For tests: frees the block that is kept, so that the next call has to allocate.
  static void release_kept_block();

 private:
  struct Block;
  Block* own_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace cuflash::cpu
