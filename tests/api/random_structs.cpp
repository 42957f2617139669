#include "tests/api/random_structs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace cuflash::test {
namespace {

constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 1;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kMax / 8 : std::min(result, kMax / 8);
}

}  // namespace

int64_t RandomStructs::small() { return random_.chance(12) ? 0 : random_.between(1, 5); }

int64_t RandomStructs::extent() {
  switch (random_.below(4)) {
    case 0: return small();
    case 1:
      return random_.one_of<int64_t>({0, 1, 2, 7, 8, 15, 16, 17, 31, 64, 100, 128, 129, 255, 256, 300, 576, 1024});
    case 2:
      return random_.one_of<int64_t>({int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 21, int64_t{1} << 27,
                                      int64_t{1} << 30, kMaxExtent - 1024, kMaxExtent - 1, kMaxExtent});
    default: return random_.between(0, int64_t{1} << random_.below(32)) & kMaxExtent;
  }
}

double RandomStructs::real() {
  if (random_.chance(3)) {
    double any = 0;
    const uint64_t bits = random_.bits();
    std::memcpy(&any, &bits, sizeof any);
    return any;
  }
  return random_.one_of({0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, 1.2e-38, 1e-300, 0.999999, 2.3586e38, 2.36e38, -2.36e38,
                         3e38, 3.5e38, 1e300, double{INFINITY}, -double{INFINITY}, double{NAN}});
}

const void* RandomStructs::address() {
  // Invalid; aligned to vectors, to elements, or to bytes.
  const uintptr_t unit = random_.one_of<uintptr_t>({64, 64, 64, 64, 64, 64, 16, 8, 2, 1});
  return reinterpret_cast<const void*>((uintptr_t{1} << 44) + unit * static_cast<uintptr_t>(random_.below(1 << 30)));
}

template <class TensorStruct>
void RandomStructs::set(TensorStruct& t, DType dtype, const Shape& shape, Order order) {
  t.data = const_cast<void*>(address()), t.dtype = static_cast<int32_t>(dtype);
  t.rank = static_cast<int32_t>(shape.size());
  std::array<int, 4> inside{0, 1, 2, 3};  // from the outermost dimension to the innermost
  if (order == Order::heads_inside && shape.size() == 4) std::swap(inside[1], inside[2]);
  int64_t step = 1;
  for (int n = t.rank - 1; n >= 0; --n) {
    const int d = inside[static_cast<size_t>(n)];
    t.shape[d] = shape[static_cast<size_t>(d)];
    t.stride[d] = order == Order::repeated && n != t.rank - 1 ? 0 : step;
    step = product(step, std::max<int64_t>(1, t.shape[d]));
  }
}

template <class TensorStruct>
void RandomStructs::set_optional(TensorStruct& t, int64_t one_in, DType dtype, const Shape& shape, Order order) {
  if (random_.chance(one_in)) set(t, dtype, shape, order);
}

RandomStructs::Order RandomStructs::input_order() {
  return random_.one_of({Order::contiguous, Order::heads_inside, Order::repeated, Order::repeated});
}
RandomStructs::Order RandomStructs::output_order() { return random_.one_of({Order::contiguous, Order::heads_inside}); }

void RandomStructs::set_integers(cuflash_tensor& t, const Shape& shape, const std::vector<int32_t>& values) {
  memory_.push_back(values);
  memory_.back().push_back(0);  // even an empty array has an address
  set(t, DType::i32, shape, Order::contiguous);
  t.data = memory_.back().data();
}

std::vector<int32_t> RandomStructs::lengths(int64_t count, int64_t most) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int32_t& value : values) value = static_cast<int32_t>(random_.between(0, most));
  return values;
}

std::vector<int32_t> RandomStructs::ends(int64_t count, int64_t total) {
  std::vector<int32_t> values = lengths(count, total);
  values.push_back(0);
  std::sort(values.begin(), values.end());
  return values;
}

// Few, since each sequence needs lengths in memory.
RandomStructs::Sizes RandomStructs::draw_sizes(bool few_sequences) {
  const bool large = random_.chance(3);
  const auto size = [&] { return large ? extent() : small(); };
  Sizes s{};
  s.batch = few_sequences ? random_.between(0, 6) : size();
  s.heads_k = std::max<int64_t>(1, size());
  s.heads_q = s.heads_k * random_.one_of<int64_t>({1, 1, 2, 4, 7, 128});
  if (s.heads_q > kMaxExtent) s.heads_q = s.heads_k;
  s.len_q = size(), s.len_k = size();
  const auto dim = [&] {
    return random_.chance(2) ? random_.one_of<int64_t>({64, 128, 80}) : std::max<int64_t>(1, size());
  };
  s.dim_qk = dim(), s.dim_v = random_.chance(2) ? s.dim_qk : dim();
  s.dtype = random_.one_of({DType::f64, DType::f32, DType::f16, DType::bf16});
  s.out = random_.chance(4) ? DType::f32 : s.dtype;
  return s;
}

RandomStructs::Shape RandomStructs::rows_shape(int64_t heads, int64_t length, int64_t dim) const {
  return packed_ ? Shape{length, heads, dim} : Shape{s_.batch, heads, length, dim};
}
RandomStructs::Shape RandomStructs::lse_shape() const {
  return packed_ ? Shape{s_.heads_q, s_.len_q} : Shape{s_.batch, s_.heads_q, s_.len_q};
}

void RandomStructs::fill_queries() {
  cuflash_attention& a = attention.get();
  set(a.q, s_.dtype, rows_shape(s_.heads_q, s_.len_q, s_.dim_qk), input_order());
  s_.max_q = s_.len_q;
  if (packed_) {
    set_integers(a.cu_seqlens_q, {s_.batch + 1}, ends(s_.batch, s_.len_q));
    a.max_seqlen_q = random_.chance(2) ? 0 : s_.max_q = std::max(s_.len_q, extent());
  } else if (s_.batch <= 6 && random_.chance(3)) {
    set_integers(a.seqlens_q, {s_.batch}, lengths(s_.batch, s_.len_q));
  }
}

void RandomStructs::fill_keys() {
  cuflash_attention& a = attention.get();
  set(a.k, s_.dtype, rows_shape(s_.heads_k, s_.len_k, s_.dim_qk), input_order());
  set(a.v, s_.dtype, rows_shape(s_.heads_k, s_.len_k, s_.dim_v), input_order());
  s_.max_k = s_.len_k;
  if (packed_) {
    set_integers(a.cu_seqlens_k, {s_.batch + 1}, ends(s_.batch, s_.len_k));
    // A bias needs a bound: without one its shape would follow from the random lengths.
    a.max_seqlen_k = random_.chance(2) ? 0 : s_.max_k = std::max(s_.len_k, extent());
  } else if (s_.batch <= 6 && random_.chance(3)) {
    set_integers(a.seqlens_k, {s_.batch}, lengths(s_.batch, s_.len_k));
  }
  const Shape pairs{random_.chance(2) ? 1 : s_.batch, random_.chance(2) ? 1 : s_.heads_q,
                    random_.chance(2) ? 1 : s_.max_q, s_.max_k};
  set_optional(a.bias, 4, s_.out, pairs, input_order());
  set_optional(a.mask, 6, DType::boolean, pairs, input_order());
  a.dropout_p = random_.chance(4) ? 0.25 : 0;
  a.alignment = random_.chance(4) ? CUFLASH_TOP_LEFT : CUFLASH_BOTTOM_RIGHT;
}

void RandomStructs::fill_scores() {
  cuflash_attention& a = attention.get();
  a.has_scale = random_.chance(2), a.scale = random_.one_of({0.125, -0.3, 0.0, 1e-35, 2.3586e38});
  a.causal = random_.chance(3);
  if (random_.chance(3)) a.window_left = extent();
  if (random_.chance(4)) a.window_right = extent();
  if (random_.chance(4)) a.softcap = random_.one_of({30.0, 1.2e-38, 3e38});
  set_optional(a.alibi_slopes, 5, DType::f32, random_.chance(2) ? Shape{s_.heads_q} : Shape{s_.batch, s_.heads_q},
               input_order());
  set_optional(a.sink, 4, s_.out, {s_.heads_q}, Order::contiguous);
}

void RandomStructs::fill_forward() {
  fill_keys();
  set(outputs.get().o, s_.out, rows_shape(s_.heads_q, s_.len_q, s_.dim_v), output_order());
  set_optional(outputs.get().lse, 2, state_type(s_.dtype), lse_shape(), Order::contiguous);
}

void RandomStructs::fill_backward() {
  fill_keys();
  cuflash_attention& a = attention.get();
  cuflash_backward_tensors& t = gradients.get();
  const Shape o = rows_shape(s_.heads_q, s_.len_q, s_.dim_v);
  set(t.o, s_.out, o, input_order()), set(t.dout, s_.out, o, input_order());
  set(t.lse, state_type(s_.dtype), lse_shape(), input_order());
  set_optional(t.dlse, 4, state_type(s_.dtype), lse_shape(), input_order());
  set_optional(t.dq, 2, s_.out, rows_shape(s_.heads_q, s_.len_q, s_.dim_qk), output_order());
  set_optional(t.dk, 2, s_.out, rows_shape(s_.heads_k, s_.len_k, s_.dim_qk), output_order());
  set_optional(t.dv, 2, s_.out, rows_shape(s_.heads_k, s_.len_k, s_.dim_v), output_order());
  if (a.bias.rank != 0 && random_.chance(2)) {
    // dbias has the extents of bias, and 1 where bias repeats.
    Shape own(a.bias.shape, a.bias.shape + 4);
    for (size_t d = 0; d < 3; ++d)
      if (own[d] == 1 || a.bias.stride[d] == 0) own[d] = std::min<int64_t>(1, own[d]);
    set(t.dbias, s_.out, own, output_order());
  }
  if (a.sink.rank != 0) set_optional(t.dsink, 2, s_.out, {s_.heads_q}, Order::contiguous);
}

void RandomStructs::fill_cache() {
  cuflash_cache_tensors& c = cache.get();
  const bool paged = random_.chance(2), appends = random_.chance(2);
  const int64_t columns = random_.between(1, 40),
                page_size = std::max<int64_t>(1, random_.chance(8) ? extent() : s_.len_k);
  const int64_t room = paged ? std::min(columns * page_size, kMaxExtent) : s_.len_k;
  const int64_t entries = paged ? 7 : s_.batch + random_.between(0, 2);
  const auto order = [&] { return appends ? output_order() : input_order(); };
  set(c.k, s_.dtype, {entries, s_.heads_k, paged ? page_size : room, s_.dim_qk}, order());
  set(c.v, s_.dtype, {entries, s_.heads_k, paged ? page_size : room, s_.dim_v}, order());
  if (paged) set_integers(c.block_table, {s_.batch, columns}, lengths(s_.batch * columns, 6));
  else if (random_.chance(3)) {
    std::vector<int32_t> entry(static_cast<size_t>(s_.batch));
    for (size_t b = 0; b < entry.size(); ++b) entry[b] = static_cast<int32_t>(b);
    set_integers(c.batch_idx, {s_.batch}, entry);
  }
  const int64_t added = appends ? std::min<int64_t>(random_.between(0, 3), room) : 0;
  std::vector<int32_t> rows = lengths(s_.batch, std::min(room - added, int64_t{1} << 20));
  if (random_.chance(3)) {
    std::vector<int32_t> pad(rows);
    for (int32_t& value : pad) value = static_cast<int32_t>(random_.between(0, value));
    set_integers(c.leftpad, {s_.batch}, pad);
  }
  set_integers(c.seqlens, {s_.batch}, rows);
  if (appends) {
    const bool packed = random_.chance(3);
    const auto shape = [&](int64_t dim) {
      return packed ? Shape{added, s_.heads_k, dim} : Shape{s_.batch, s_.heads_k, added, dim};
    };
    set(c.k_new, s_.dtype, shape(s_.dim_qk), input_order());
    set(c.v_new, s_.dtype, shape(s_.dim_v), input_order());
    if (packed) {
      set_integers(c.cu_seqlens_new, {s_.batch + 1}, ends(s_.batch, added));
      c.max_seqlen_new = random_.chance(2) ? 0 : std::max(added, extent());
    } else if (random_.chance(3)) {
      set_integers(c.seqlens_new, {s_.batch}, lengths(s_.batch, added));
    }
  }
  if (s_.dim_qk > 1 && random_.chance(3)) {
    const Shape table{kMaxExtent, std::max<int64_t>(1, s_.dim_qk / random_.one_of<int64_t>({2, 4}))};
    set(c.rotary_cos, s_.out, table, Order::contiguous), set(c.rotary_sin, s_.out, table, Order::contiguous);
  }
  if (random_.chance(2)) c.num_splits = random_.one_of<int32_t>({1, 2, 3, 8, 4096, 5000, 1 << 20, 0x7fffffff});
  set(c.o, s_.out, rows_shape(s_.heads_q, s_.len_q, s_.dim_v), output_order());
  set_optional(c.lse, 2, state_type(s_.dtype), lse_shape(), Order::contiguous);
}

void RandomStructs::fill_merge() {
  cuflash_merge_tensors& m = merge.get();
  const Shape o = rows_shape(s_.heads_q, s_.len_q, s_.dim_v);
  set(m.o_a, s_.dtype, o, input_order()), set(m.o_b, s_.dtype, o, input_order());
  set(m.lse_a, state_type(s_.dtype), lse_shape(), input_order());
  set(m.lse_b, state_type(s_.dtype), lse_shape(), input_order());
  set(m.o, s_.out, o, output_order());
  set_optional(m.lse, 2, state_type(s_.dtype), lse_shape(), Order::contiguous);
}

void RandomStructs::fill_execution() {
  cuflash_execution& e = execution.get();
  no_execution = random_.chance(6);
  e.device = random_.one_of<int32_t>({CUFLASH_DEVICE_CPU, CUFLASH_DEVICE_CPU, CUFLASH_DEVICE_AUTO});
  e.num_threads = random_.one_of<int32_t>({0, 1, 2, 7, 1024, 1 << 20, 0x7fffffff});
  e.deterministic = random_.chance(2);
  if (random_.chance(8)) e.workspace = reinterpret_cast<void*>(uintptr_t{1} << 45), e.workspace_size = random_.bits();
}

// One field of one tensor.
template <class TensorStruct>
void RandomStructs::change(TensorStruct& t) {
  const auto number = [&] { return random_.one_of<int64_t>({extent(), -1, -2, kMin, kMax, kMaxExtent + 1, 0, 1}); };
  const auto d = random_.below(4);
  switch (random_.below(7)) {
    case 0: t.data = random_.chance(2) ? nullptr : const_cast<void*>(address()); break;
    case 1: t.dtype = static_cast<int32_t>(random_.one_of<int64_t>({0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 30})); break;
    case 2: t.rank = static_cast<int32_t>(random_.one_of<int64_t>({0, 1, 2, 3, 4, 5, -1, 0x7fffffff})); break;
    case 3:
    case 4: t.shape[d] = number(); break;
    case 5:
      t.stride[d] = random_.chance(2) ? number() : static_cast<int64_t>(random_.bits() >> random_.below(64));
      break;
    default: t = {};
  }
}

template <class Struct>
void RandomStructs::change_size(Padded<Struct>& s) {
  const auto own = static_cast<int64_t>(sizeof(Struct));
  const int64_t size =
      random_.one_of<int64_t>({0, 1, own - 1, own + 1, own + 8, own / 2, Padded<Struct>::kBytes - 8,
                               Padded<Struct>::kBytes, Padded<Struct>::kBytes + 1, kMax, random_.below(2 * own)});
  s.grow();
  s.get().struct_size = static_cast<size_t>(size);
  if (random_.chance(3)) s.byte(own + random_.below(Padded<Struct>::kBytes - own)) = std::byte{1};
}

void RandomStructs::change_numbers() {
  cuflash_attention& a = attention.get();
  cuflash_execution& e = execution.get();
  const auto integer = [&] { return random_.one_of<int64_t>({extent(), -1, -2, 0, 1, kMin, kMax, kMaxExtent + 1}); };
  switch (random_.below(14)) {
    case 0: a.scale = real(), a.has_scale = 1; break;
    case 1: a.softcap = real(); break;
    case 2: a.dropout_p = real(); break;
    case 3: a.window_left = integer(); break;
    case 4: a.window_right = integer(); break;
    case 5: a.alignment = static_cast<int32_t>(random_.bits()); break;
    case 6: a.max_seqlen_q = integer(); break;
    case 7: a.max_seqlen_k = integer(); break;
    case 8: cache.get().max_seqlen_new = integer(); break;
    case 9: cache.get().num_splits = static_cast<int32_t>(random_.bits()); break;
    case 10: e.device = static_cast<int32_t>(integer()); break;
    case 11: e.num_threads = static_cast<int32_t>(integer()); break;
    case 12: e.workspace = const_cast<void*>(address()), e.workspace_size = random_.bits(); break;
    default: e.tile_stats = reinterpret_cast<cuflash_tile_stats*>(uintptr_t{8}), e.check_lengths = 1;
  }
}

std::vector<cuflash_tensor*> RandomStructs::integers() {
  cuflash_attention& a = attention.get();
  cuflash_cache_tensors& c = cache.get();
  return {&a.cu_seqlens_q, &a.cu_seqlens_k, &a.seqlens_q, &a.seqlens_k,      &c.seqlens,
          &c.block_table,  &c.batch_idx,    &c.leftpad,   &c.cu_seqlens_new, &c.seqlens_new};
}

std::vector<cuflash_tensor*> RandomStructs::inputs() {
  cuflash_attention& a = attention.get();
  cuflash_backward_tensors& t = gradients.get();
  cuflash_cache_tensors& c = cache.get();
  cuflash_merge_tensors& m = merge.get();
  std::vector<cuflash_tensor*> all = integers();
  all.insert(all.end(), {&a.q, &a.k, &a.v, &a.alibi_slopes, &a.bias, &a.mask, &a.sink});
  switch (kind) {
    case CallKind::forward: break;
    case CallKind::backward: all.insert(all.end(), {&t.o, &t.lse, &t.dout, &t.dlse}); break;
    case CallKind::cache: all.insert(all.end(), {&c.k_new, &c.v_new, &c.rotary_cos, &c.rotary_sin}); break;
    case CallKind::merge: all = {&m.o_a, &m.o_b, &m.lse_a, &m.lse_b};
  }
  return all;
}

std::vector<cuflash_mutable_tensor*> RandomStructs::written() {
  cuflash_backward_tensors& t = gradients.get();
  cuflash_cache_tensors& c = cache.get();
  switch (kind) {
    case CallKind::forward: return {&outputs.get().o, &outputs.get().lse};
    case CallKind::backward: return {&t.dq, &t.dk, &t.dv, &t.dbias, &t.dsink};
    case CallKind::cache: return {&c.k, &c.v, &c.o, &c.lse};
    default: return {&merge.get().o, &merge.get().lse};
  }
}

void RandomStructs::change_something() {
  const auto any_of = [&](const auto& all) {
    return all[static_cast<size_t>(random_.below(static_cast<int64_t>(all.size())))];
  };
  switch (random_.below(8)) {
    case 0:
    case 1: change(*any_of(inputs())); break;
    case 2: change(*any_of(written())); break;
    case 3:
    case 4: change_numbers(); break;
    case 5:
      if (!memory_.empty()) {
        std::vector<int32_t>& values =
            memory_[static_cast<size_t>(random_.below(static_cast<int64_t>(memory_.size())))];
        values[static_cast<size_t>(random_.below(static_cast<int64_t>(values.size())))] =
            static_cast<int32_t>(random_.one_of<int64_t>({extent(), -1, 0, 0x7fffffff, kMaxExtent + 1}));
      }
      break;
    case 6: {  // two tensors at the same address
      cuflash_mutable_tensor& t = *any_of(written());
      t.data = const_cast<void*>(any_of(inputs())->data);
      break;
    }
    default:
      switch (random_.below(4)) {
        case 0: change_size(attention); break;
        case 1: change_size(execution); break;
        case 2: change_size(cache); break;
        default: kind == CallKind::backward ? change_size(gradients) : change_size(outputs);
      }
  }
}

RandomStructs::RandomStructs(CallKind kind, uint64_t seed) : kind(kind), random_(seed) {
  cuflash_attention_init(&attention.get()), cuflash_execution_init(&execution.get());
  cuflash_forward_outputs_init(&outputs.get()), cuflash_backward_tensors_init(&gradients.get());
  cuflash_cache_tensors_init(&cache.get()), cuflash_merge_tensors_init(&merge.get());
  packed_ = random_.chance(3);
  s_ = draw_sizes(packed_ || kind == CallKind::cache);
  if (kind != CallKind::merge) fill_queries(), fill_scores();
  switch (kind) {
    case CallKind::forward: fill_forward(); break;
    case CallKind::backward: fill_backward(); break;
    case CallKind::cache: fill_cache(); break;
    case CallKind::merge: fill_merge();
  }
  fill_execution();
  if (random_.chance(50)) {  // random bytes instead of a struct
    for (size_t n = sizeof(size_t); n < sizeof(cuflash_attention); ++n)
      attention.byte(static_cast<int64_t>(n)) = static_cast<std::byte>(random_.bits());
    return;
  }
  for (int64_t changes = random_.one_of<int64_t>({0, 0, 1, 1, 1, 2, 3}); changes > 0; --changes) change_something();
}

void RandomStructs::make_readable() {
  for (cuflash_tensor* t : integers()) {
    int64_t reach = 1;
    for (int d = 0; d < std::clamp(t->rank, 0, 4); ++d)
      if (t->shape[d] > 1) reach += product(t->shape[d] - 1, std::max<int64_t>(0, t->stride[d]));
    const auto holds = [&](const std::vector<int32_t>& values) {
      return values.data() == t->data && reach <= static_cast<int64_t>(values.size());
    };
    if (std::none_of(memory_.begin(), memory_.end(), holds)) t->data = nullptr;
  }
}

}  // namespace cuflash::test
