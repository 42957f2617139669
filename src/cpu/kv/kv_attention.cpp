#include "cpu/kv/kv_attention.h"

#include <algorithm>

#include "cpu/decode/decode.h"
#include "cpu/forward.h"
#include "cpu/kv/append.h"
#include "cpu/plan/plan.h"
#include "cpu/plan/workspace.h"
#include "cpu/threads/threads.h"
#include "error.h"

namespace cuflash::cpu {
namespace {

// The work of a batch by actual lengths, which may be far below the capacity of the cache.
struct BatchWork {
  bool decode = false, panels = false;  // whether each path has a sequence
  Checked pairs;                        // (query, key) pairs of one head

  explicit BatchWork(const ForwardProblem& p) {
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence s = sequence_of(p, b);
      (takes_decode(p, s) ? decode : panels) = true;
      pairs = pairs + s.len_q * s.len_k;
    }
  }
  int32_t threads(Problem p, const Execution& e) const {
    p.batch = p.len_q = 1, p.len_k = pairs.at_most(Checked::kLargest);
    return static_cast<int32_t>(worker_count(p, e, Checked::kLargest));
  }
};

TileStats sum_of(const TileStats& a, const TileStats& b) {
  return {b.tile_q, b.tile_k, a.visited + b.visited, a.masked + b.masked, a.skipped + b.skipped};
}

// sized_for: the threads for which the workspace was sized, of which e may have fewer.
void attend(const ForwardProblem& p, const Execution& e, int64_t sized_for, const BatchWork& work, int64_t splits) {
  if (!work.panels) return decode(p, e, splits);
  if (!work.decode) return forward_panels(p, e, sized_for);
  TileStats by_rows{}, by_panels{};
  Execution counted = e;
  if (e.tile_stats) counted.tile_stats = &by_rows;
  decode(p, counted, splits);
  if (e.tile_stats) counted.tile_stats = &by_panels;
  forward_panels(p, counted, sized_for);
  if (e.tile_stats) *e.tile_stats = sum_of(by_rows, by_panels);
}

// The problem in the form of the forward pass. With one key per page, the row stride is the page stride. rotated: memory
// of the rotated queries, if there are any; null if only strides matter.
ForwardProblem attention_of(const CacheProblem& p, void* rotated) {
  ForwardProblem attention = p;
  const Rows q = rotated_queries(p, rotated);
  if (p.rotary) attention.q = {q.data, q.dtype, q.batch_stride, q.head_stride, q.row_stride};
  if (p.cache.page_size == 1) attention.k.row_stride = p.k.batch_stride, attention.v.row_stride = p.v.batch_stride;
  return attention;
}

size_t attention_size(const ForwardProblem& p, const Execution& e, int64_t splits) {
  const size_t panels = takes_decode(p) ? 0 : forward_panels_workspace_size(p, e);
  return std::max(panels, decode_workspace_size(p, e, splits));
}

size_t queries_size(const CacheProblem& p) {
  Arena arena(nullptr);
  arena.take<std::byte>(rotated_queries_size(p));
  return workspace_bytes(arena.used());
}

size_t sum_of(size_t a, size_t b) {
  return workspace_bytes(Checked(static_cast<int64_t>(a)) + static_cast<int64_t>(b));
}

}  // namespace

// Depends on shapes only, because lengths may change between the query and the call. Any sequence of the batch may have
// few queries, so the size covers the decode path too.
size_t cache_workspace_size(const CacheProblem& p, const Execution& e) {
  return sum_of(queries_size(p), attention_size(attention_of(p, nullptr), e, p.num_splits));
}

void attend_cache(const CacheProblem& p, const Execution& e) {
  const size_t of_queries = queries_size(p);
  const size_t of_attention = attention_size(attention_of(p, nullptr), e, p.num_splits);
  const Workspace workspace(e, sum_of(of_queries, of_attention));
  auto* memory = static_cast<std::byte*>(workspace.data());
  append_and_rotate(p, rotated_queries(p, memory), e);
  const ForwardProblem attention = attention_of(p, memory);
  Execution rest = e;
  const BatchWork work(attention);
  rest.workspace = memory + of_queries, rest.workspace_size = of_attention;
  rest.num_threads = work.threads(attention, e);
  attend(attention, rest, num_threads(e), work, p.num_splits);
}

std::string describe_cache(const CacheProblem& p) {
  std::string text;
  if (p.k_new) text += p.rotary ? "new keys are rotated and written; " : "new keys are written; ";
  if (p.rotary) text += "queries are rotated; ";
  if (!takes_decode(p) && (p.packed() || p.used_q)) text += "decode where a sequence has few queries, otherwise ";
  text += describe_forward(p, p.num_splits);
  if (p.cache.page_size) text += join("; pages of ", p.cache.page_size);
  return text;
}

}  // namespace cuflash::cpu
