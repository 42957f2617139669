// Tables by option.
#include <algorithm>

#include "cli/support/question.h"
#include "cli/support/tables.h"

namespace cuflash::cli {

namespace {

using Cells = std::vector<std::string>;

struct Option {
  const char* name;
  std::function<void(ExplainOptions&)> set;
  std::function<void(Sketch&)> change;
  enum { both, forward_only, backward_only } direction = both;
};

const int32_t kStarts[] = {0, kSupportLength}, kLengths[] = {kSupportLength};

template <class Rows>
void pack(Rows& t) {
  if (!t) return;
  const auto shape = t.shape, stride = t.stride;
  const bool is_lse = t.rank == 3;
  t.rank -= 1;
  t.shape = is_lse ? std::array<int64_t, 4>{shape[1], shape[2]} : std::array<int64_t, 4>{shape[2], shape[1], shape[3]};
  t.stride =
      is_lse ? std::array<int64_t, 4>{stride[1], stride[2]} : std::array<int64_t, 4>{stride[2], stride[1], stride[3]};
}

void make_packed(Sketch& s) {
  pack(s.attention.q), pack(s.attention.k), pack(s.attention.v), pack(s.outputs.o), pack(s.outputs.lse);
  pack(s.tensors.o), pack(s.tensors.lse), pack(s.tensors.dout);
  pack(s.tensors.dq), pack(s.tensors.dk), pack(s.tensors.dv);
  s.attention.cu_seqlens_q = s.attention.cu_seqlens_k = contiguous(kStarts, 2);
  s.attention.max_seqlen_q = s.attention.max_seqlen_k = kSupportLength;
}

void make_f32_results(Sketch& s) {
  for (Tensor* t : {&s.outputs.o, &s.tensors.dq, &s.tensors.dk, &s.tensors.dv}) t->dtype = DType::f32;
  s.tensors.o.dtype = s.tensors.dout.dtype = DType::f32;
}

const std::vector<Option> kOptions = {
    {"none", {}, {}},
    {"LSE output", [](auto& o) { o.lse = true; }, {}, Option::forward_only},
    {"gradient of LSE", {}, [](Sketch& s) { s.tensors.dlse = s.tensors.lse; }, Option::backward_only},
    {"only some gradients", {}, [](Sketch& s) { s.tensors.dk = s.tensors.dv = {}; }, Option::backward_only},
    {"deterministic", [](auto& o) { o.execution.deterministic = true; }, {}, Option::backward_only},
    {"f32 results of 16-bit inputs", {}, make_f32_results},
    {"grouped heads (GQA)", [](auto& o) { o.heads_k = 2; }, {}},
    {"one key head (MQA)", [](auto& o) { o.heads_k = 1; }, {}},
    {"few queries, many keys", [](auto& o) { o.seq_q = 1, o.seq_k = kSupportLength; }, {}},
    {"another head size of v", [](auto& o) { o.dim_v = o.dim / 2; }, {}},
    {"memory [B, S, H, D]", [](auto& o) { o.layout = Layout::bshd; }, {}},
    {"rows not on 16-byte boundaries", {}, [](Sketch& s) { s.attention.q.stride[2] += 1; }},
    {"repeated (stride 0) k and v", {}, [](Sketch& s) { s.attention.k.stride[1] = s.attention.v.stride[1] = 0; }},
    {"causal, bottom-right", [](auto& o) { o.attention.causal = true; }, {}},
    {"causal, top-left", [](auto& o) { o.attention.causal = true, o.attention.alignment = Alignment::top_left; }, {}},
    {"sliding window", [](auto& o) { o.attention.window_left = 100, o.attention.window_right = 20; }, {}},
    {"scale", [](auto& o) { o.attention.scale = 0.1; }, {}},
    {"negative scale", [](auto& o) { o.attention.scale = -0.1; }, {}},
    {"softcap", [](auto& o) { o.attention.softcap = 30; }, {}},
    {"ALiBi", [](auto& o) { o.alibi = true; }, {}},
    {"bias, with its gradient", [](auto& o) { o.bias = true; }, {}},
    {"mask tensor", [](auto& o) { o.mask = true; }, {}},
    {"sinks, with their gradient", [](auto& o) { o.sink = true; }, {}},
    {"dropout", [](auto& o) { o.attention.dropout_p = 0.1; }, {}},
    {"packed (cu_seqlens)", {}, make_packed},
    {"padded (seqlens)",
     {},
     [](Sketch& s) { s.attention.seqlens_q = s.attention.seqlens_k = contiguous(kLengths, 1); }},
    {"all of softcap, ALiBi, bias, mask, sinks, dropout",
     [](auto& o) {
       o.alibi = o.bias = o.mask = o.sink = true;
       o.attention.softcap = 30, o.attention.dropout_p = 0.1;
     },
     {}},
};

Question with(const Option& option, DType type, int64_t dim, bool backward) {
  Question question = plain_question(type, dim, backward);
  if (option.set) option.set(question.options);
  question.change = option.change;
  return question;
}

std::vector<bool> directions(const Option& option) {
  if (option.direction == Option::both) return {false, true};
  return {option.direction == Option::backward_only};
}

// Every type, and head sizes that cover each padded size of the kernels, with and without a remainder.
constexpr int64_t kDims[] = {2, 31, 32, 64, 72, 96, 128, 160, 192, 250, 256};

std::string served_everywhere(const Option& option, const char* place) {
  std::string refused;
  for (const bool backward : directions(option))
    for (const DType type : kSupportTypes)
      for (const int64_t dim : kDims)
        if (const Answer answer = ask(with(option, type, dim, backward), place); !answer.served)
          refused += join(refused.empty() ? "" : "; ", backward ? "backward " : "forward ", name_of(type), " D=", dim,
                          ": ", answer.reason);
  return refused.empty() ? "yes" : refused;
}

}  // namespace

Table options_everywhere() {
  Table table{{"option"}, {}};
  table.head.insert(table.head.end(), std::begin(kSupportPlaces), std::end(kSupportPlaces));
  table.head.insert(table.head.end(), {"forward kernel", "backward kernel"});
  for (const Option& option : kOptions) {
    Cells row{option.name};
    for (const char* place : kSupportPlaces) row.push_back(served_everywhere(option, place));
    for (const bool backward : {false, true}) {
      const std::vector<bool> has = directions(option);
      const bool applies = std::find(has.begin(), has.end(), backward) != has.end();
      row.push_back(applies ? ask(with(option, DType::bf16, 128, backward), "sm_80").options : "");
    }
    table.rows.push_back(row);
  }
  return table;
}

Table hopper_options() {
  Table table{{"option", "D = 64", "D = 128", "D = 192", "D = 256", "backward, D = 128"}, {}};
  for (const Option& option : kOptions) {
    if (option.direction == Option::backward_only) continue;
    Cells row{option.name};
    for (const int64_t dim : {64, 128, 192, 256}) row.push_back(ask_hopper(with(option, DType::bf16, dim, false)));
    row.push_back(option.direction == Option::forward_only ? "" : ask_hopper(with(option, DType::bf16, 128, true)));
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace cuflash::cli
