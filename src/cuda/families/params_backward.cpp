#include "cuda/families/params_backward.h"

#include "cuda/families/params_forward.h"

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
  if (w.kept_dq != 0) b.kept_dq = static_cast<float*>(part(w.kept_dq));
  else if (w.dq_rows != 0) b.dq_accum = part(w.dq_accum);
  b.dq_rows = w.dq_rows;
  if (plan.ordered) b.dq_semaphore = static_cast<unsigned*>(part(w.dq_semaphore));
  if (plan.ordered || plan.main.persistent || plan.bias.persistent) b.ticket = static_cast<uint64*>(part(w.ticket));
  b.interleaved_heads = plan.interleaved_heads, b.tail_heads = plan.tail_heads;
  b.counts_in_bias = plan.main.grid_x == 0 && plan.dq.grid_x == 0;
  b.head_parts = plan.parts.heads, b.query_parts = plan.parts.queries;
  b.packed_key_tiles = w.packed_key_tiles;
  if (plan.parts.count() > 1) {
    b.dk_accum = static_cast<float*>(part(w.dk_accum)), b.dv_accum = static_cast<float*>(part(w.dv_accum));
    if (plan.parts.own_sums) {
      b.part_tiles = w.key_tiles;
    } else {
      const int64_t ctas = plan.prepare.ctas();
      b.zero_bytes = static_cast<int64_t>(w.sums_end() - w.dk_accum);
      b.zero_bytes_per_cta = (b.zero_bytes / 16 + ctas - 1) / ctas * 16;
    }
  }
  b.dbias_parts = plan.dbias_parts, b.dbias_counts = w.dbias_counts;
  if (w.dbias_counts != 0) b.dbias_sums = static_cast<float*>(part(w.dbias_sums));
  if (w.dq_tasks != 0) {
    b.dq_tasks = static_cast<unsigned*>(part(w.dq_tasks)), b.task_keys = plan.tile_k;
    b.prepared_tiles = static_cast<unsigned*>(part(w.prepared_tiles));
    b.prepare_ticket = static_cast<unsigned*>(part(w.prepare_ticket)), b.prepared_heads = plan.prepared_heads;
  }
  if (w.listed_tiles != 0) {
    b.key_tiles = static_cast<KeyTile*>(part(w.list));
    b.listed_keys = plan.tile_k, b.max_listed = static_cast<int>(w.listed_tiles);
  }
  return b;
}

}  // namespace cuflash::cuda
