// Calls visit(name, tensor) for every tensor of a public struct. Tensors that the call may write are
// cuflash_mutable_tensor.
#pragma once

#include <cuflash/cuflash_cache.h>

namespace cuflash {

template <class Visit>
void for_each_tensor(const cuflash_attention& a, Visit visit) {
  visit("q", a.q), visit("k", a.k), visit("v", a.v);
  visit("alibi_slopes", a.alibi_slopes), visit("bias", a.bias), visit("mask", a.mask), visit("sink", a.sink);
  visit("cu_seqlens_q", a.cu_seqlens_q), visit("cu_seqlens_k", a.cu_seqlens_k);
  visit("seqlens_q", a.seqlens_q), visit("seqlens_k", a.seqlens_k), visit("mask_summary", a.mask_summary);
}
template <class Visit>
void for_each_tensor(const cuflash_forward_outputs& t, Visit visit) {
  visit("o", t.o), visit("lse", t.lse);
}
template <class Visit>
void for_each_tensor(const cuflash_backward_tensors& t, Visit visit) {
  visit("o", t.o), visit("lse", t.lse), visit("dout", t.dout), visit("dlse", t.dlse);
  visit("dq", t.dq), visit("dk", t.dk), visit("dv", t.dv);
  visit("dbias", t.dbias), visit("dsink", t.dsink);
}
template <class Visit>
void for_each_tensor(const cuflash_cache_tensors& t, Visit visit) {
  visit("k", t.k), visit("v", t.v), visit("seqlens", t.seqlens), visit("block_table", t.block_table);
  visit("batch_idx", t.batch_idx), visit("leftpad", t.leftpad), visit("k_new", t.k_new);
  visit("v_new", t.v_new), visit("cu_seqlens_new", t.cu_seqlens_new), visit("seqlens_new", t.seqlens_new);
  visit("rotary_cos", t.rotary_cos), visit("rotary_sin", t.rotary_sin), visit("o", t.o), visit("lse", t.lse);
}
// The arguments of cuflash_summarize_mask.
struct SummaryTensors {
  const cuflash_tensor& mask;
  const cuflash_mutable_tensor& summary;
};
template <class Visit>
void for_each_tensor(const SummaryTensors& t, Visit visit) {
  visit("mask", t.mask), visit("summary", t.summary);
}
template <class Visit>
void for_each_tensor(const cuflash_merge_tensors& t, Visit visit) {
  visit("o_a", t.o_a), visit("lse_a", t.lse_a), visit("o_b", t.o_b), visit("lse_b", t.lse_b);
  visit("o", t.o), visit("lse", t.lse);
}

}  // namespace cuflash
