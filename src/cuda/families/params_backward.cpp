#include "cuda/families/params_backward.h"

#include "cuda/driver/tensor_map.h"
#include "cuda/families/params_forward.h"
#include "cuda/families/tile_order.h"

namespace cuflash::cuda {

BackwardParams backward_params(const BackwardProblem& p, const BackwardPlan& plan, void* workspace,
                               uint64_t* tile_counts) {
  const auto part = [&](size_t offset) { return static_cast<void*>(static_cast<std::byte*>(workspace) + offset); };
  const BackwardWorkspace& w = plan.workspace;
  BackwardParams b{};
  b.attention = attention_params(p, tile_counts);
  b.o = view_of(p.o), b.lse = view_of(p.lse), b.dout = view_of(p.dout), b.dlse = view_of(p.dlse);
  b.dq = view_of(p.dq), b.dk = view_of(p.dk), b.dv = view_of(p.dv), b.dbias = view_of(p.dbias);
  b.dsink = view_of(p.dsink);
  b.bias_batch = static_cast<int>(p.bias_batch), b.bias_heads = static_cast<int>(p.bias_heads);
  b.bias_len_q = static_cast<int>(p.bias_len_q);
  b.packed_tiles = w.packed_tiles;
  b.row_stats = part(w.row_stats);
  if (w.dq_rows != 0) b.dq_accum = part(w.dq_accum);
  b.dq_rows = w.dq_rows;
  if (plan.ordered) b.dq_semaphore = static_cast<unsigned*>(part(w.dq_semaphore));
  if (plan.ordered || plan.main.persistent) b.ticket = static_cast<uint64*>(part(w.ticket));
  b.heads_together = plan.heads_together, b.heads_at_end = plan.heads_at_end;
  b.counts_in_bias = plan.main.grid_x == 0;
  return b;
}

Sm90BackwardParams sm90_backward_params(const BackwardProblem& p, const BackwardPlan& plan, int64_t dq_ctas,
                                        void* workspace, uint64_t* tile_counts) {
  Sm90BackwardParams h{};
  h.backward = backward_params(p, plan, workspace, tile_counts);
  h.scale_log2 = static_cast<float>(p.scale * kLog2e);
  h.q = tensor_map(p.q, query_extent(p), plan.tile_q), h.dout = tensor_map(p.dout, output_extent(p), plan.tile_q);
  h.row_stats = tensor_map(static_cast<const float*>(h.backward.row_stats), plan.workspace.tiles,
                           row_stats_size(shared_config(std::get<Sm90BackwardConfig>(plan.config))));
  if (plan.main.grid_x != 0)
    h.k = tensor_map(p.k, key_extent(p), plan.tile_k), h.v = tensor_map(p.v, value_extent(p), plan.tile_k);
  if (plan.dq.grid_x != 0) {
    const Sm90DqConfig& c = plan.dq_config;
    h.dq_k = tensor_map(p.k, key_extent(p), c.tile_k), h.dq_v = tensor_map(p.v, value_extent(p), c.tile_k);
    h.tile_order = tile_order(p, tile_q_of(c), dq_ctas);
    h.counts_in_dq = plan.main.grid_x == 0;
  }
  return h;
}

}  // namespace cuflash::cuda
