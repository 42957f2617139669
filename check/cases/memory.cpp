#include "check/cases/memory.h"

#include <limits>

#include "check/cases/fill.h"
#include "check/cases/layout.h"
#include "dtype.h"

namespace cuflash::check {

CaseMemory::CaseMemory(const Case& c) : case_(c) {
  if (c.mode == Mode::packed) {
    cu_q_values_ = cumulative(c.lengths_q);
    cu_k_values_ = cumulative(c.lengths_k);
  }
  build_inputs();
  build_outputs();
  Random random(c.data_seed);
  fill_inputs(random);
  if (c.mask && c.mask_summary != Case::Summary::none) summarize();
  if (c.live_nan) plant_live_nan(random);
  if (c.garbage) change_hidden(random.next());
  freeze_inputs();
}

static GuardedTensor place_lengths(const char* name, const std::vector<int32_t>& values) {
  GuardedTensor t = place_vector(name, DType::i32, {static_cast<int64_t>(values.size())});
  t.write({values.begin(), values.end()});
  return t;
}

void CaseMemory::build_inputs() {
  const Case& c = case_;
  const bool packed = c.mode == Mode::packed;
  const int64_t rows_q = packed ? c.rows_q() : c.len_q, rows_k = packed ? c.rows_k() : c.len_k;
  const Layout together{.order = Order::bshd, .gap = 0, .offset = c.q.offset};
  if (c.fused == Fused::qkv) {
    const auto all = place_rows("qkv", c.dtype, packed, {c.batch, c.heads_q + 2 * c.heads_k, rows_q, c.dim}, together);
    q = all.heads("q", 0, c.heads_q);
    k = all.heads("k", c.heads_q, c.heads_k);
    v = all.heads("v", c.heads_q + c.heads_k, c.heads_k);
  } else {
    q = place_rows("q", c.dtype, packed, {c.batch, c.heads_q, rows_q, c.dim}, c.q);
    k = place_rows("k", c.dtype, packed, {c.batch, c.heads_k, rows_k, c.dim}, c.k);
    v = place_rows("v", c.dtype, packed, {c.batch, c.heads_k, rows_k, c.dim_v}, c.v);
  }
  if (c.fused == Fused::kv) {
    const auto both = place_rows("kv", c.dtype, packed, {c.batch, 2 * c.heads_k, rows_k, c.dim}, together);
    k = both.heads("k", 0, c.heads_k);
    v = both.heads("v", c.heads_k, c.heads_k);
  }
  if (c.alibi_rank == 1) slopes_ = place_vector("alibi_slopes", DType::f32, {c.heads_q});
  if (c.alibi_rank == 2) slopes_ = place_vector("alibi_slopes", DType::f32, {c.batch, c.heads_q});
  if (c.bias) bias = place_scores("bias", c.bias_dtype, c, *c.bias);
  if (c.mask) mask = place_scores("mask", DType::boolean, c, *c.mask);
  if (c.sink) sink = place_vector("sink", c.sink_dtype, {c.heads_q});
  if (packed) {
    cu_q_ = place_lengths("cu_seqlens_q", cu_q_values_);
    cu_k_ = place_lengths("cu_seqlens_k", cu_k_values_);
  }
  if (c.mode == Mode::padded && !c.lengths_q.empty()) used_q_ = place_lengths("seqlens_q", c.lengths_q);
  if (c.mode == Mode::padded && !c.lengths_k.empty()) used_k_ = place_lengths("seqlens_k", c.lengths_k);
}

void CaseMemory::build_outputs() {
  const Case& c = case_;
  const bool packed = c.mode == Mode::packed;
  const DType lse_type = state_type(c.dtype), type = c.gradient_dtype;
  const RowsShape out{c.batch, c.heads_q, packed ? c.rows_q() : c.len_q, c.dim_v};
  const RowsShape keys{c.batch, c.heads_k, packed ? c.rows_k() : c.len_k, c.dim};
  o = place_rows("o", c.o_dtype, packed, out, c.o);
  lse = place_lse("lse", lse_type, packed, out, c.lse);
  dout = place_rows("dout", c.dout_dtype, packed, out, c.dout);
  if (c.dlse_given) dlse = place_lse("dlse", lse_type, packed, out, c.dlse);
  if (c.gradients.dq) dq = place_rows("dq", type, packed, {out.batch, out.heads, out.length, c.dim}, c.dq);
  if (c.gradients.dk) dk = place_rows("dk", type, packed, keys, c.dk);
  if (c.gradients.dv) dv = place_rows("dv", type, packed, {keys.batch, keys.heads, keys.length, c.dim_v}, c.dv);
  if (c.gradients.dbias) dbias = place_scores("dbias", type, c, *c.bias);
  if (c.gradients.dsink) dsink = place_vector("dsink", type, {c.heads_q});
  if (!packed) return;
  for (GuardedTensor* t : {&o, &dq}) t->limit(0, cu_q_values_.back());
  for (GuardedTensor* t : {&dk, &dv}) t->limit(0, cu_k_values_.back());
  lse.limit(1, cu_q_values_.back());
}

void CaseMemory::fill_inputs(Random& random) {
  const Case& c = case_;
  fill_qkv(c, q, k, v, random);
  fill_normal(dout, random);
  if (dlse) fill_normal(dlse, random);
  if (slopes_) fill_normal(slopes_, random, 0.3);
  if (bias) fill_normal(bias, random);
  if (mask) fill_mask(c, mask, random);
  if (sink)  // a sink of -inf has no weight
    sink.for_each([&](const Index&, int64_t offset) {
      sink.set(offset, random.below(8) == 0 ? -std::numeric_limits<double>::infinity() : 2 * random.normal());
    });
}

// The layout of a summary is the same in host and device memory, so a call on a GPU gets a copy of this one.
void CaseMemory::summarize() {
  const Tensor view = repeated(mask, case_, *case_.mask);
  const auto words = static_cast<int64_t>(mask_summary_size(view) / sizeof(int32_t));
  summary_ = GuardedTensor("mask_summary", DType::i32, {words}, {1}, 0);
  const Execution here{.device = Device::cpu, .num_threads = 1};
  made_ = summarize_mask(view, summary_.view().data, static_cast<size_t>(words) * sizeof(int32_t), here);
}

void CaseMemory::freeze_inputs() {
  for (GuardedTensor* t :
       {&q, &k, &v, &bias, &sink, &dout, &dlse, &slopes_, &mask, &summary_, &cu_q_, &cu_k_, &used_q_, &used_k_})
    t->freeze();
}

Attention CaseMemory::given_attention() const {
  Attention a = attention();
  a.mask_summary = made_;
  if (made_ && case_.mask_summary == Case::Summary::alone) a.mask = {};
  return a;
}

Attention CaseMemory::attention() const {
  const Case& c = case_;
  Attention a{.q = q.view(), .k = k.view(), .v = v.view()};
  a.scale = c.scale;
  a.causal = c.causal;
  a.alignment = c.alignment;
  a.window_left = c.window_left;
  a.window_right = c.window_right;
  a.softcap = c.softcap;
  a.alibi_slopes = slopes_.view();
  if (c.bias) a.bias = repeated(bias, c, *c.bias);
  if (c.mask) a.mask = repeated(mask, c, *c.mask);
  a.sink = sink.view();
  a.dropout_p = c.dropout_p;
  a.dropout_seed = c.dropout_seed;
  a.dropout_offset = c.dropout_offset;
  a.cu_seqlens_q = cu_q_.view();
  a.cu_seqlens_k = cu_k_.view();
  if (c.give_max_seqlen) a.max_seqlen_q = c.len_q, a.max_seqlen_k = c.len_k;
  a.seqlens_q = used_q_.view();
  a.seqlens_k = used_k_.view();
  return a;
}

ForwardOutputs CaseMemory::forward_outputs(bool with_lse) const {
  return {.o = o.view(), .lse = with_lse ? lse.view() : Tensor{}};
}

BackwardTensors CaseMemory::backward_tensors() const {
  BackwardTensors t{.o = o.view(), .lse = lse.view(), .dout = dout.view()};
  t.dlse = dlse.view();
  t.dq = dq.view();
  t.dk = dk.view();
  t.dv = dv.view();
  if (dbias) t.dbias = case_.dbias_repeats ? repeated(dbias, case_, *case_.bias) : dbias.view();
  t.dsink = dsink.view();
  return t;
}

void CaseMemory::start_forward() {
  o.poison();
  lse.poison();
}

void CaseMemory::start_backward() {
  Random random(~case_.data_seed);
  if (case_.garbage) {
    fill_garbage(o, used_query_rows(o, case_.heads_q, case_.dim_v), random);
    fill_garbage(lse, used_lse(lse), random);
  }
  o.freeze();
  lse.freeze();
  for (GuardedTensor* t : {&dq, &dk, &dv, &dbias, &dsink}) t->poison();
}

std::vector<std::vector<std::byte>> CaseMemory::results() const {
  return {o.bytes(), lse.bytes(), dq.bytes(), dk.bytes(), dv.bytes(), dbias.bytes(), dsink.bytes()};
}

static std::string first_of(std::initializer_list<std::string> findings) {
  for (const std::string& finding : findings)
    if (!finding.empty()) return finding;
  return "";
}

std::string CaseMemory::damage() const {
  return first_of({q.damage(),    k.damage(),        v.damage(),     bias.damage(),  sink.damage(),    slopes_.damage(),
                   mask.damage(), summary_.damage(), cu_q_.damage(), cu_k_.damage(), used_q_.damage(), used_k_.damage(),
                   o.damage(),    lse.damage(),      dout.damage(),  dlse.damage(),  dq.damage(),      dk.damage(),
                   dv.damage(),   dbias.damage(),    dsink.damage()});
}

std::string CaseMemory::unwritten_gradients() const {
  return first_of({dq.unwritten(), dk.unwritten(), dv.unwritten(), dbias.unwritten(), dsink.unwritten()});
}

}  // namespace cuflash::check
