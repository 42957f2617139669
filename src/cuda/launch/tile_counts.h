// The tile statistics of one call: kernels add to three counters at the start of the workspace, which are copied to the
// host when the stream is done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem/problem.h"

namespace cuflash::cuda {

class TileCounts {
 public:
  static constexpr size_t kBytes = 64;  // keeps the rest of the workspace aligned
  static size_t bytes(const Execution& execution) { return execution.tile_stats ? kBytes : 0; }

  // Does nothing if no statistics are requested. Throws while the stream is captured.
  TileCounts(const Execution& execution, void* workspace);

  uint64_t* data() const { return counts_; }

  // Waits for the stream.
  void report(int64_t tile_q, int64_t tile_k) const;

 private:
  TileStats* stats_;
  void* stream_;
  uint64_t* counts_ = nullptr;  // null: not requested
};

}  // namespace cuflash::cuda
