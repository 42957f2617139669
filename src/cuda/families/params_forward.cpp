#include "cuda/families/params_forward.h"

#include "cuda/plan/plan_common.h"
#include "philox.h"

namespace cuflash::cuda {

namespace {

// The structs that are shared with kernels have one kind of pointer, for inputs and outputs alike.
void* without_const(const void* data) { return const_cast<void*>(data); }

}  // namespace

template <class Pointer>
RowsView view_of(const BasicRows<Pointer>& r) {
  return {without_const(r.data), r.batch_stride, r.head_stride, r.row_stride, static_cast<int>(r.dtype)};
}
template <class Pointer>
HeadView view_of(const BasicHeadValues<Pointer>& v) {
  return {without_const(v.data), v.batch_stride, v.head_stride, static_cast<int>(v.dtype)};
}
template RowsView view_of(const ConstRows&);
template RowsView view_of(const Rows&);
template HeadView view_of(const ConstHeadValues&);
template HeadView view_of(const HeadValues&);

AttentionParams attention_params(const Problem& p, uint64_t* tile_counts) {
  AttentionParams a{};
  a.q = view_of(p.q), a.k = view_of(p.k), a.v = view_of(p.v);
  a.bias = view_of(p.bias), a.mask = view_of(p.mask), a.summary = p.summary;
  a.slopes = view_of(p.slopes), a.sink = view_of(p.sink);
  a.batch = static_cast<int>(p.batch), a.heads_q = static_cast<int>(p.heads_q), a.heads_k = static_cast<int>(p.heads_k);
  a.group = static_cast<int>(p.group());
  a.len_q = static_cast<int>(p.len_q), a.len_k = static_cast<int>(p.len_k);
  a.dim_qk = static_cast<int>(p.dim_qk), a.dim_v = static_cast<int>(p.dim_v);
  a.window_left = p.window_left, a.window_right = p.window_right, a.top_left = p.top_left;
  a.tanh_argument = tanh_argument(p);
  a.cu_q = p.cu_q, a.cu_k = p.cu_k, a.used_q = p.used_q, a.used_k = p.used_k;
  a.total_q = p.total_q, a.total_k = p.total_k;
  a.scale = p.scale, a.softcap = p.softcap, a.keep_scale = 1 / (1 - p.dropout.p);
  a.dropout_seed = p.dropout.seed, a.dropout_offset = p.dropout.offset;
  a.dropout_rule = dropout_rule(p.dropout.p);
  a.tile_counts = reinterpret_cast<uint64*>(tile_counts);
  return a;
}

ForwardParams forward_params(const ForwardProblem& p, uint64_t* tile_counts) {
  return {attention_params(p, tile_counts), view_of(p.o), view_of(p.lse)};
}

}  // namespace cuflash::cuda
