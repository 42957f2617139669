// Arrays and options -> the library's structs -> one call.
#include "execute.h"
#include "mask_summary.h"

namespace cuflash::python {
namespace {

cuflash_attention attention_of(Arrays& arrays, nb::handle q, nb::handle k, nb::handle v, const Options& o) {
  cuflash_attention a;
  cuflash_attention_init(&a);
  arrays.triple(a.q, a.k, a.v, {q, k, v, "q", "k", "v", "kv", "qkv"}, packing_of(k, v));
#define CUFLASH_ASSIGN(type, name, value) a.name = o.name;
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_ASSIGN, CUFLASH_NOTHING)
#undef CUFLASH_ASSIGN
  a.scale = o.scale.value_or(0), a.has_scale = o.scale.has_value();
  a.alignment = o.top_left ? CUFLASH_TOP_LEFT : CUFLASH_BOTTOM_RIGHT;
#define CUFLASH_INPUT(name, kind) arrays.input(a.name, o.name, #name);
  CUFLASH_ATTENTION_ARRAYS(CUFLASH_INPUT)
#undef CUFLASH_INPUT
  take_summary(a, a.cu_seqlens_k.data ? a.max_seqlen_k : a.k.shape[2]);
  return a;
}

cuflash_forward_outputs tensors_of(Arrays& arrays, const ForwardArrays& a) {
  cuflash_forward_outputs t;
  cuflash_forward_outputs_init(&t);
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  return t;
}

cuflash_backward_tensors tensors_of(Arrays& arrays, const BackwardArrays& a) {
  cuflash_backward_tensors t;
  cuflash_backward_tensors_init(&t);
  arrays.rows(t.o, a.out, "out"), arrays.input(t.lse, a.lse, "lse");
  arrays.rows(t.dout, a.dout, "dout"), arrays.input(t.dlse, a.dlse, "dlse");
  arrays.triple(t.dq, t.dk, t.dv, {a.dq, a.dk, a.dv, "dq", "dk", "dv", "dkv", "dqkv"}, packing_of(a.k, a.v));
  arrays.output(t.dbias, a.dbias, "dbias"), arrays.output(t.dsink, a.dsink, "dsink");
  return t;
}

}  // namespace

void forward(Arrays& arrays, const ForwardArrays& a, const Options& o, const Allocate& allocate) {
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const cuflash_forward_outputs tensors = tensors_of(arrays, a);
  execute(arrays, o, attention, tensors, cuflash_forward, {o.layout, Words::attention, packing_of(a.k, a.v)}, allocate);
}

void backward(Arrays& arrays, const BackwardArrays& a, const Options& o, const Allocate& allocate) {
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const cuflash_backward_tensors tensors = tensors_of(arrays, a);
  execute(arrays, o, attention, tensors, cuflash_backward, {o.layout, Words::attention, packing_of(a.k, a.v)},
          allocate);
}

void forward(const ForwardArrays& a, const Options& o) {
  Arrays arrays(o.layout, o.stream);
  forward(arrays, a, o, nullptr);
}

void backward(const BackwardArrays& a, const Options& o) {
  Arrays arrays(o.layout, o.stream);
  backward(arrays, a, o, nullptr);
}

std::string explain_forward(const ForwardArrays& a, const Options& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const cuflash_forward_outputs tensors = tensors_of(arrays, a);
  return explain(arrays, o, attention, tensors, cuflash_explain_forward,
                 {o.layout, Words::attention, packing_of(a.k, a.v)});
}

std::string explain_backward(const BackwardArrays& a, const Options& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const cuflash_backward_tensors tensors = tensors_of(arrays, a);
  return explain(arrays, o, attention, tensors, cuflash_explain_backward,
                 {o.layout, Words::attention, packing_of(a.k, a.v)});
}

}  // namespace cuflash::python
