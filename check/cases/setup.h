// The execution of a case's calls: threads, streams, workspace.
#pragma once

#include "check/cases/case.h"
#include "check/memory/device.h"
#include "check/memory/guarded.h"

namespace cuflash::check {

// Runs the last index first: nothing may depend on the order.
void run_backwards(void*, int64_t n, cuflash_parallel_body body, void* body_context);

// Provides a workspace of exactly the queried size, if the case or the caller wants one.
class Setup {
 public:
  template <class Tensors>
  Setup(const Case& c, int threads, const Attention& attention, const Tensors& tensors, bool own_workspace = false) {
    execution_.num_threads = threads;
    execution_.deterministic = c.deterministic;
    if (c.own_parallel_for) execution_.parallel_for = run_backwards;
    if (c.tile_stats) execution_.tile_stats = &stats_;
    if (!c.exact_workspace && !own_workspace) return;
    execution_.workspace_size = workspace_bytes(c.device, attention, tensors, execution_);
    workspace_ = GuardedTensor("workspace", DType::boolean, {static_cast<int64_t>(execution_.workspace_size)}, {1}, 0);
    execution_.workspace = workspace_.view().data;
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const Execution& execution() const { return execution_; }
  const TileStats& stats() const { return stats_; }
  std::string damage() const { return workspace_.damage(); }

 private:
  Execution execution_;
  TileStats stats_{};
  GuardedTensor workspace_;
};

}  // namespace cuflash::check
