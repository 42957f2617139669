#include "cuda/launch/tile_counts.h"

#include "cuda/driver/stream.h"

namespace cuflash::cuda {
namespace {

struct Counted {
  uint64_t visited, masked, skipped;  // the order of AttentionParams::tile_counts
};
static_assert(sizeof(Counted) <= TileCounts::kBytes);

}  // namespace

TileCounts::TileCounts(const Execution& e, void* workspace) : stats_(e.tile_stats), stream_(e.stream) {
  if (!stats_) return;
  require_no_capture("tile_stats", stream_);
  counts_ = static_cast<uint64_t*>(workspace);
  zero(counts_, sizeof(Counted), stream_);
}

void TileCounts::report(int64_t tile_q, int64_t tile_k) const {
  if (!stats_) return;
  Counted counted{};
  copy_to_host(&counted, counts_, sizeof counted, stream_);
  synchronize(stream_);
  *stats_ = {tile_q, tile_k, static_cast<int64_t>(counted.visited), static_cast<int64_t>(counted.masked),
             static_cast<int64_t>(counted.skipped)};
}

}  // namespace cuflash::cuda
