#include "tests/problem/rejections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

namespace cuflash::rejections {
namespace {

constexpr unsigned char kPoison = 0xa5;

// `word` occurs in the sentence as a whole word.
bool mentions(const std::string& sentence, const std::string& word) {
  const auto in_word = [&](size_t at) {
    return at < sentence.size() && (std::isalnum(static_cast<unsigned char>(sentence[at])) != 0 || sentence[at] == '_');
  };
  for (size_t at = sentence.find(word); at != std::string::npos; at = sentence.find(word, at + 1))
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  return false;
}

}  // namespace

std::string why_not_refused(bool untouched, const Refusal& expected, const char* what, cuflash_status status) {
  const std::string message = status == CUFLASH_OK ? "" : cuflash_last_error();
  const auto wrong = [&](const std::string& why) {
    return std::string(what) + " " + why + "; it said " + cuflash_status_name(status) + " \"" + message + "\"";
  };
  if (!untouched) return wrong("wrote to an output");
  if (status != expected.status) return wrong(std::string("must answer ") + cuflash_status_name(expected.status));
  if (message.rfind(expected.argument + ":", 0) != 0) return wrong("must name " + expected.argument + " first");
  for (const std::string& value : expected.values)
    if (!mentions(message, value)) return wrong("must say " + value);
  return "";
}

std::optional<std::string> failure_of(const Rule& rule, const Sizes& sizes, Choices& choices) {
  Call call(sizes);
  const std::optional<Refusal> expected = rule.apply(call, choices);
  if (!expected) return std::nullopt;
  size_t bytes = 12345;
  const auto why_not = [&](const char* what, cuflash_status status) {
    return why_not_refused(call.outputs_untouched(), *expected, what, status);
  };
  std::string failure = why_not("the workspace query", call.workspace_size(&bytes));
  if (failure.empty() && bytes != 12345) failure = "the workspace query wrote a size of " + text(bytes);
  if (failure.empty()) failure = why_not("explain", call.explain(nullptr, 0, nullptr));
  if (failure.empty()) failure = why_not("the call", call.run());
  if (!failure.empty()) failure = rule.name + ", " + describe(sizes) + ": " + failure;
  return failure;
}

void expect_all_refused(const std::vector<Rule>& rules) {
  // Together with the 24 kinds of call these reach every dimension and value that a rule chooses from.
  constexpr uint64_t kVariants = 4;
  std::map<std::string, int> applied;
  const auto expect_refused = [&](const Rule& rule, const Sizes& sizes, Choices choices) {
    const std::optional<std::string> failure = failure_of(rule, sizes, choices);
    if (failure) ++applied[rule.name];
    EXPECT_EQ(failure.value_or(""), "");
  };
  uint64_t kind_of_call = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Mode mode : {Mode::dense, Mode::padded, Mode::packed}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        const Sizes sizes{.direction = direction, .mode = mode, .dtype = dtype, .output_dtype = dtype};
        for (const Rule& rule : rules) {
          expect_refused(rule, sizes, Choices({}));
          for (uint64_t n = 0; n < kVariants; ++n) expect_refused(rule, sizes, Choices::of_seed(kind_of_call, n));
        }
        ++kind_of_call;
      }
    }
  }
  for (const Rule& rule : rules) EXPECT_GT(applied[rule.name], 0) << rule.name << " applied to no call";
  EXPECT_EQ(applied.size(), rules.size()) << "two rules have the same name";
}

std::string random_refusal(const std::vector<Rule>& rules, Choices& choices) {
  const Sizes sizes = draw_sizes(choices);
  const size_t first = choices.below(static_cast<uint32_t>(rules.size()));
  for (size_t n = 0; n < rules.size(); ++n) {
    const std::optional<std::string> failure = failure_of(rules[(first + n) % rules.size()], sizes, choices);
    if (failure) return *failure;
  }
  return "no rule applies to " + describe(sizes);
}

const char* name_of(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

Sizes draw_sizes(Choices& choices) {
  Sizes s;
  s.direction = choices.one_of<Direction>({Direction::forward, Direction::backward});
  s.mode = choices.one_of<Mode>({Mode::dense, Mode::padded, Mode::packed});
  s.dtype = choices.one_of<DType>({DType::f32, DType::f64, DType::f16, DType::bf16});
  s.output_dtype = choices.chance(2) ? DType::f32 : s.dtype;
  s.batch = choices.between(2, 4), s.heads_k = choices.between(2, 3), s.group = choices.between(1, 3);
  s.len_q = choices.between(2, 9), s.len_k = choices.between(2, 9);
  s.dim = choices.between(2, 9), s.dim_v = choices.between(2, 9);
  return s;
}

std::string describe(const Sizes& s) {
  const char* modes[] = {"dense", "padded", "packed"};
  return std::string(name_of(s.direction)) + " " + modes[static_cast<int>(s.mode)] + " " + cuflash::name_of(s.dtype) +
         " out " + cuflash::name_of(s.output_dtype) + " B=" + text(s.batch) + " Hq=" + text(s.heads_q()) +
         " Hk=" + text(s.heads_k) + " Sq=" + text(s.len_q) + " Sk=" + text(s.len_k) + " D=" + text(s.dim) +
         " Dv=" + text(s.dim_v);
}

Call::Call(const Sizes& sizes) : sizes(sizes) {
  cuflash_attention_init(&attention);
  cuflash_forward_outputs_init(&outputs);
  cuflash_backward_tensors_init(&tensors);
  cuflash_execution_init(&execution);
  execution.num_threads = 1;
  fill_inputs();
  fill_lengths();
  fill_options();
  fill_outputs();
}

cuflash_status Call::run() const {
  return backward() ? cuflash_backward(attention_argument, tensors_argument, execution_argument)
                    : cuflash_forward(attention_argument, outputs_argument, execution_argument);
}

cuflash_status Call::workspace_size(size_t* bytes) const {
  return backward() ? cuflash_backward_workspace_size(attention_argument, tensors_argument, execution_argument, bytes)
                    : cuflash_forward_workspace_size(attention_argument, outputs_argument, execution_argument, bytes);
}

cuflash_status Call::explain(char* text, size_t capacity, size_t* needed) const {
  return backward() ? cuflash_explain_backward(attention_argument, tensors_argument, execution_argument, text, capacity,
                                               needed)
                    : cuflash_explain_forward(attention_argument, outputs_argument, execution_argument, text, capacity,
                                              needed);
}

bool Call::outputs_untouched() const {
  return std::all_of(outputs_memory_.begin(), outputs_memory_.end(), [](const auto& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == kPoison; });
  });
}

std::vector<Slot> Call::slots() {
  std::vector<Slot> all;
  const auto add = [&](const char* name, auto& t) { add_slot(all, name, t); };
  cuflash_attention& a = attention;
  add("q", a.q), add("k", a.k), add("v", a.v), add("alibi_slopes", a.alibi_slopes), add("bias", a.bias);
  add("mask", a.mask), add("sink", a.sink), add("cu_seqlens_q", a.cu_seqlens_q), add("cu_seqlens_k", a.cu_seqlens_k);
  add("seqlens_q", a.seqlens_q), add("seqlens_k", a.seqlens_k);
  if (!backward()) {
    add("o", outputs.o), add("lse", outputs.lse);
    return all;
  }
  cuflash_backward_tensors& t = tensors;
  add("o", t.o), add("lse", t.lse), add("dout", t.dout), add("dlse", t.dlse), add("dq", t.dq), add("dk", t.dk);
  add("dv", t.dv), add("dbias", t.dbias), add("dsink", t.dsink);
  return all;
}

Slot Call::slot(const std::string& name) {
  for (Slot& slot : slots())
    if (slot.name == name) return slot;
  throw std::logic_error("this call has no tensor " + name);
}

std::byte* Call::scratch(size_t bytes) {
  scratch_.emplace_back(bytes + 64);
  const size_t address = reinterpret_cast<uintptr_t>(scratch_.back().data());
  return reinterpret_cast<std::byte*>(scratch_.back().data() + (64 - address % 64) % 64);
}

template <class TensorStruct>
void Call::bind(TensorStruct& t, DType dtype, const Shape& shape, Memory& memory, unsigned char fill) {
  t.dtype = static_cast<int32_t>(dtype);
  t.rank = static_cast<int32_t>(shape.size());
  int64_t elements = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    t.shape[d] = shape[d], t.stride[d] = elements;
    elements *= shape[d];
  }
  t.data = memory.emplace_back(static_cast<size_t>(elements * size_of(dtype)), fill).data();
}
void Call::input(cuflash_tensor& t, DType dtype, const Shape& shape, unsigned char fill) {
  bind(t, dtype, shape, inputs_memory_, fill);
}
void Call::output(cuflash_mutable_tensor& t, DType dtype, const Shape& shape) {
  bind(t, dtype, shape, outputs_memory_, kPoison);
}

// Packed: the first sequence has the full length, the others one row less, and one row follows the last.
int64_t Call::rows(int64_t length) const { return sizes.batch * (length - 1) + 2; }
Call::Shape Call::shape(int64_t heads, int64_t length, int64_t dim) const {
  if (packed()) return {rows(length), heads, dim};
  return {sizes.batch, heads, length, dim};
}
Call::Shape Call::lse_shape() const {
  if (packed()) return {sizes.heads_q(), rows(sizes.len_q)};
  return {sizes.batch, sizes.heads_q(), sizes.len_q};
}

// All values are 0: a rejection depends on none, and a valid call gives finite results.
void Call::fill_inputs() {
  const Sizes& s = sizes;
  input(attention.q, s.dtype, shape(s.heads_q(), s.len_q, s.dim));
  input(attention.k, s.dtype, shape(s.heads_k, s.len_k, s.dim));
  input(attention.v, s.dtype, shape(s.heads_k, s.len_k, s.dim_v));
  input(attention.alibi_slopes, DType::f32, {s.batch, s.heads_q()});
  input(attention.bias, s.output_dtype, {s.batch, s.heads_q(), s.len_q, s.len_k});
  input(attention.mask, DType::boolean, {s.batch, s.heads_q(), s.len_q, s.len_k}, 1);
  input(attention.sink, s.output_dtype, {s.heads_q()});
}

void Call::fill_lengths() {
  if (sizes.mode == Mode::dense) return;
  const auto fill = [&](cuflash_tensor& cumulative, cuflash_tensor& used, int64_t length) {
    input(packed() ? cumulative : used, DType::i32, {sizes.batch + (packed() ? 1 : 0)});
    int32_t* values = static_cast<int32_t*>(const_cast<void*>((packed() ? cumulative : used).data));
    for (int64_t b = 0; b < sizes.batch; ++b) {
      if (packed()) {
        values[b + 1] = static_cast<int32_t>(values[b] + length - (b == 0 ? 0 : 1));
      } else {
        values[b] = static_cast<int32_t>(length - b % 2);
      }
    }
  };
  fill(attention.cu_seqlens_q, attention.seqlens_q, sizes.len_q);
  fill(attention.cu_seqlens_k, attention.seqlens_k, sizes.len_k);
  if (packed()) attention.max_seqlen_q = sizes.len_q, attention.max_seqlen_k = sizes.len_k;
}

void Call::fill_options() {
  attention.scale = 0.5, attention.has_scale = 1;
  attention.causal = 1;
  attention.window_left = 3;
  attention.softcap = 20;
  attention.dropout_p = 0.25;
}

void Call::fill_outputs() {
  const Sizes& s = sizes;
  const DType out = s.output_dtype, state = state_type(s.dtype);
  const Shape o_shape = shape(s.heads_q(), s.len_q, s.dim_v);
  if (!backward()) {
    output(outputs.o, out, o_shape);
    output(outputs.lse, state, lse_shape());
    return;
  }
  input(tensors.o, out, o_shape);
  input(tensors.lse, state, lse_shape());
  input(tensors.dout, out, o_shape);
  input(tensors.dlse, state, lse_shape());
  output(tensors.dq, out, shape(s.heads_q(), s.len_q, s.dim));
  output(tensors.dk, out, shape(s.heads_k, s.len_k, s.dim));
  output(tensors.dv, out, shape(s.heads_k, s.len_k, s.dim_v));
  output(tensors.dbias, out, {s.batch, s.heads_q(), s.len_q, s.len_k});
  output(tensors.dsink, out, {s.heads_q()});
}

}  // namespace cuflash::rejections
