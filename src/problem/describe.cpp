#include "problem/describe.h"

#include <algorithm>

#include "error.h"
#include "problem/describe_common.h"
#include "problem/disjoint.h"
#include "problem/lengths.h"
#include "problem/tensor_rules.h"

namespace cuflash {
namespace {

struct Layout {
  int rank, head, row, dim;  // index of each dimension
  const char* q;
  const char* k;
  const char* v;
};
constexpr Layout kDense{4, 1, 2, 3, "[B, Hq, Sq, D]", "[B, Hk, Sk, D]", "[B, Hk, Sk, Dv]"};
constexpr Layout kPacked{3, 1, 0, 2, "[Tq, Hq, D]", "[Tk, Hk, D]", "[Tk, Hk, Dv]"};

const Layout& layout_of(const cuflash_attention& a) {
  const bool packed =
      Argument("cu_seqlens_q", a.cu_seqlens_q).given() || Argument("cu_seqlens_k", a.cu_seqlens_k).given();
  return packed ? kPacked : kDense;
}

void require_shape_like(const Argument& a, const Argument& like, const char* meaning) {
  for (int d = 0; d < like.t.rank; ++d) require_extent(a, d, like.extent(d), meaning);
}

void describe_inputs(Problem& p, const cuflash_attention& a, const Layout& layout) {
  const Argument q("q", a.q), k("k", a.k), v("v", a.v);
  require_tensor(q, layout.rank, layout.q);
  require_tensor(k, layout.rank, layout.k);
  require_tensor(v, layout.rank, layout.v);
  if (!is_float(q.dtype())) reject("q: type ", name_of(q.dtype()), " must be f64, f32, f16 or bf16");
  require_type(k, q.dtype(), "the type of q");
  require_type(v, q.dtype(), "the type of q");

  p.dtype = q.dtype();
  p.heads_q = q.extent(layout.head), p.heads_k = k.extent(layout.head);
  p.dim_qk = q.extent(layout.dim), p.dim_v = v.extent(layout.dim);
  if (p.dim_qk < 1) reject("q: head size D ", p.dim_qk, " must be at least 1");
  if (p.dim_v < 1) reject("v: head size Dv ", p.dim_v, " must be at least 1");
  if (p.heads_q < 1) reject("q: has ", p.heads_q, " heads, must have at least 1");
  if (p.heads_k < 1) reject("k: has ", p.heads_k, " heads, must have at least 1");
  if (p.heads_q % p.heads_k != 0)
    reject("q: has ", p.heads_q, " heads, must be a multiple of the ", p.heads_k, " heads of k");
  require_extent(k, layout.dim, p.dim_qk, "the head size of q");
  require_extent(v, layout.head, p.heads_k, "the heads of k");
  require_extent(v, layout.row, k.extent(layout.row), "the length of k");
  if (layout.rank == 4) {
    require_extent(k, 0, q.extent(0), "the batch of q (use stride 0 to share one entry)");
    require_extent(v, 0, q.extent(0), "the batch of q (use stride 0 to share one entry)");
  }
  p.q = rows_of(q, a.q.data), p.k = rows_of(k, a.k.data), p.v = rows_of(v, a.v.data);
}

void describe_attention(Problem& p, const cuflash_attention& a, Memory memory, Snapshot& copies) {
  const Layout& layout = layout_of(a);
  p.memory = memory;
  describe_inputs(p, a, layout);
  describe_lengths(p, a, copies);
  describe_scores(p, a);
  describe_score_inputs(p, a);
  drop_loose_bounds(p);
}

Rows describe_gradient(const char* name, const cuflash_mutable_tensor& gradient, const char* of,
                       const cuflash_tensor& input) {
  const Argument g(name, gradient), x(of, input);
  if (!g.given()) return {};
  require_output(g, x.t.rank, "shaped as its input");
  require_shape_like(g, x, "as in its input");
  require_value_type(g, x.dtype());
  return rows_of(g, gradient.data);
}

// dbias must have extent 1 (or stride 0) exactly where bias is broadcast: there the gradient is a sum.
void describe_bias_gradient(BackwardProblem& p, const cuflash_attention& a, const cuflash_backward_tensors& t) {
  const Argument dbias("dbias", t.dbias), bias("bias", a.bias);
  if (!dbias.given()) return;
  if (!bias.given()) reject("dbias: was requested, but there is no bias");
  cuflash_mutable_tensor own = t.dbias;
  for (int d = 0; d < 3; ++d)
    if (dbias.t.rank == 4 && dbias.repeats(d)) own.shape[d] = std::min<int64_t>(1, own.shape[d]);
  const Argument summed("dbias", own);
  require_output(summed, 4, "shaped as bias");
  for (int d = 0; d < 3; ++d) {
    const int64_t extent = bias.repeats(d) ? std::min<int64_t>(1, bias.extent(d)) : bias.extent(d);
    if (summed.extent(d) != extent)
      reject("dbias: dimension ", d, " has ", summed.extent(d), " distinct rows, bias has ", extent,
             "; give it extent 1 or stride 0 exactly where bias is broadcast");
  }
  require_extent(summed, 3, bias.extent(3), "as in bias");
  require_value_type(dbias, p.dtype);
  p.dbias = rows_of(summed, t.dbias.data);
  p.bias_batch = summed.extent(0), p.bias_heads = summed.extent(1), p.bias_len_q = summed.extent(2);
  p.bias_len_k = summed.extent(3);
}

void describe_sink_gradient(BackwardProblem& p, const cuflash_backward_tensors& t) {
  const Argument dsink("dsink", t.dsink);
  if (!dsink.given()) return;
  if (!p.sink) reject("dsink: was requested, but there is no sink");
  require_output(dsink, 1, "[Hq]");
  require_extent(dsink, 0, p.heads_q, "the heads of q");
  require_value_type(dsink, p.dtype);
  p.dsink = head_values_of(dsink, t.dsink.data);
}

}  // namespace

ForwardProblem describe(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, Memory memory,
                        Snapshot& copies) {
  ForwardProblem p;
  describe_attention(p, attention, memory, copies);
  const Argument o("o", outputs.o), lse("lse", outputs.lse);
  require_like_o(o, attention.q, p.dim_v, Written::now);
  p.o = rows_of(o, outputs.o.data);
  if (lse.given()) {
    require_like_lse(lse, attention.q, Written::now);
    p.lse = lse_rows_of(lse, outputs.lse.data);
  }
  require_disjoint(attention, outputs);
  return p;
}

BackwardProblem describe(const cuflash_attention& attention, const cuflash_backward_tensors& t, Memory memory,
                         Snapshot& copies) {
  BackwardProblem p;
  describe_attention(p, attention, memory, copies);
  const Argument o("o", t.o), lse("lse", t.lse), dout("dout", t.dout), dlse("dlse", t.dlse);
  require_like_o(o, attention.q, p.dim_v, Written::before);
  require_like_lse(lse, attention.q, Written::before);
  require_like_o(dout, attention.q, p.dim_v, Written::before);
  p.o = rows_of(o, t.o.data), p.lse = lse_rows_of(lse, t.lse.data), p.dout = rows_of(dout, t.dout.data);
  if (dlse.given()) {
    require_like_lse(dlse, attention.q, Written::before);
    p.dlse = lse_rows_of(dlse, t.dlse.data);
  }
  p.dq = describe_gradient("dq", t.dq, "q", attention.q);
  p.dk = describe_gradient("dk", t.dk, "k", attention.k);
  p.dv = describe_gradient("dv", t.dv, "v", attention.v);
  describe_bias_gradient(p, attention, t);
  describe_sink_gradient(p, t);
  const Argument dq("dq", t.dq), dk("dk", t.dk), dv("dv", t.dv), dbias("dbias", t.dbias), dsink("dsink", t.dsink);
  require_disjoint(attention, t);
  if (!(dq.given() || dk.given() || dv.given() || dbias.given() || dsink.given()))
    reject("dq: no gradient was requested; give at least one of dq, dk, dv, dbias and dsink");
  return p;
}

Execution describe(const cuflash_execution& e) {
  if (e.device < CUFLASH_DEVICE_AUTO || e.device > CUFLASH_DEVICE_CUDA)
    reject("device: got ", e.device, ", must be a cuflash_device (0 to ", static_cast<int>(CUFLASH_DEVICE_CUDA), ")");
  if (e.num_threads < 0) reject("num_threads: got ", e.num_threads, ", must be 0 (the default) or more");
  if (!e.workspace && e.workspace_size != 0) reject("workspace: is NULL, but workspace_size is ", e.workspace_size);
  if (reinterpret_cast<uintptr_t>(e.workspace) % 64 != 0)
    reject("workspace: ", e.workspace, " is not aligned to 64 bytes");
  return {static_cast<Device>(e.device),
          e.num_threads,
          e.deterministic != 0,
          e.stream,
          e.workspace,
          e.workspace_size,
          e.parallel_for,
          e.parallel_for_context,
          e.tile_stats,
          e.workspace_from_pool != 0,
          e.check_lengths != 0,
          e.allocate,
          e.allocate_context};
}

}  // namespace cuflash
