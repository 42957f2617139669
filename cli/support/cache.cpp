// Tables of attention over a KV cache.
#include "cli/support/cache.h"

#include <utility>

#include "cli/support/tables.h"
#include "cuda/plan/plan.h"
#include "problem/describe_cache.h"

namespace cuflash::cli {

namespace {

using Cells = std::vector<std::string>;

constexpr int64_t kBatch = 2, kPages = 64;
constexpr int64_t kMax = (int64_t{1} << 31) - 1;
const int32_t kHeld[] = {100, 100}, kEntries[] = {1, 0}, kPads[] = {3, 0}, kStarts[] = {0, 1, 2}, kOne[] = {1, 1};

// Separate pages for each sequence, up to kHeld in pages that are appended to.
std::vector<int32_t> table_of(int64_t columns) {
  std::vector<int32_t> table;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t n = 0; n < columns; ++n) table.push_back(static_cast<int32_t>((b * kPages / kBatch + n) % kPages));
  return table;
}

}  // namespace

Tensor CacheSketch::rows(int64_t entries, int64_t heads, int64_t length, int64_t dim) {
  return bhsd(memory.next(question.dtype, entries, heads, length, dim), question.dtype, entries, heads, length, dim);
}
Tensor CacheSketch::contiguous_of(DType type, int64_t rows, int64_t columns) {
  return contiguous(memory.next(type, rows, columns), type, rows, columns);
}

CacheSketch::CacheSketch(const CacheQuestion& q) : question(q) {
  const int64_t dim_v = q.dim_v.value_or(q.dim), entries = q.page_size ? kPages : kBatch;
  const int64_t length = q.page_size ? q.page_size : q.room;
  attention.q = rows(kBatch, q.heads, 1, q.dim);
  cache.k = rows(entries, q.heads_k, length, q.dim);
  cache.v = rows(entries, q.heads_k, length, dim_v);
  cache.o = rows(kBatch, q.heads, 1, dim_v);
  cache.seqlens = contiguous(kHeld, kBatch);
  if (q.page_size) {
    const int64_t columns = kSupportLength / q.page_size;
    table = table_of(columns), cache.block_table = contiguous(std::as_const(table).data(), kBatch, columns);
  }
  if (q.change) q.change(*this);
}

void take_values_from_keys(CacheSketch& s) { s.cache.v.data = s.cache.k.data, s.cache.v.stride = s.cache.k.stride; }

Answer ask(const CacheQuestion& question, const std::string& place) {
  const CacheSketch sketch(question);
  return ask(sketch.attention, sketch.cache, place);
}

std::string ask_tma(const CacheQuestion& question) {
  const Answer answer = ask(question, "sm_90a");
  if (!answer.served) return "no kernel at all: see limits";
  return answer.not_sm90.empty() ? answer.tiles : join("no: ", answer.not_sm90);
}

namespace {

// The options of a call.
void append(CacheSketch& s) {
  const CacheQuestion& q = s.question;
  s.cache.k_new = s.rows(kBatch, q.heads_k, 1, q.dim), s.cache.v_new = s.rows(kBatch, q.heads_k, 1, s.cache.v.shape[3]);
}
void rotate(CacheSketch& s) {
  const int64_t width = s.question.dim / 2;
  s.cache.rotary_cos = s.contiguous_of(DType::f32, kSupportLength, width);
  s.cache.rotary_sin = s.contiguous_of(DType::f32, kSupportLength, width);
}
template <class Rows>
void pack(Rows& t) {
  t.rank = 3;
  t.shape = {t.shape[0] * t.shape[2], t.shape[1], t.shape[3]}, t.stride = {t.stride[0], t.stride[1], 1};
}
void pack_queries(CacheSketch& s) {
  pack(s.attention.q), pack(s.cache.o);
  s.attention.cu_seqlens_q = contiguous(kStarts, kBatch + 1), s.attention.max_seqlen_q = 1;
}
void pack_new_rows(CacheSketch& s) {
  append(s);
  pack(s.cache.k_new), pack(s.cache.v_new);
  s.cache.cu_seqlens_new = contiguous(kStarts, kBatch + 1), s.cache.max_seqlen_new = 1;
}
void pad_left(CacheSketch& s) { s.cache.leftpad = contiguous(kPads, kBatch); }
void cap(CacheSketch& s) { s.attention.softcap = 30; }
void slope(CacheSketch& s) { s.attention.alibi_slopes = s.contiguous_of(DType::f32, kBatch, s.question.heads); }
void sink(CacheSketch& s) {
  s.attention.sink = contiguous(s.memory.next(DType::f32, s.question.heads), DType::f32, s.question.heads);
}
// Gives the caches the memory order [entries, tokens, heads, dim].
void interleave_heads(CacheSketch& s) {
  for (Tensor* t : {&s.cache.k, &s.cache.v}) t->stride = {t->stride[0], t->shape[3], t->shape[1] * t->shape[3], 1};
}
void move_rows_off_boundaries(CacheSketch& s) { s.cache.k.stride[2] += 1, s.cache.k.stride[1] += kSupportLength; }

struct CacheOption {
  const char* name;
  std::function<void(CacheSketch&)> change;
  int64_t page_size = 0;
};
const std::vector<CacheOption> kOptions = {
    {"none", {}},
    {"LSE output",
     [](CacheSketch& s) {
       const DType type = state_type(s.question.dtype);
       s.cache.lse = contiguous(s.memory.next(type, kBatch, s.question.heads), type, kBatch, s.question.heads, 1);
     }},
    {"f32 results of 16-bit inputs", [](CacheSketch& s) { s.cache.o.dtype = DType::f32; }},
    {"append", append},
    {"append, packed rows (cu_seqlens_new)", pack_new_rows},
    {"append, padded rows (seqlens_new)",
     [](CacheSketch& s) { append(s), s.cache.seqlens_new = contiguous(kOne, kBatch); }},
    {"rotary embedding of queries", rotate},
    {"rotary embedding and append", [](CacheSketch& s) { rotate(s), append(s); }},
    {"rotary embedding, interleaved", [](CacheSketch& s) { rotate(s), append(s), s.cache.rotary_interleaved = true; }},
    {"entries by batch_idx", [](CacheSketch& s) { s.cache.batch_idx = contiguous(kEntries, kBatch); }},
    {"pages of 256 tokens", {}, 256},
    {"pages of 16 tokens", {}, 16},
    {"pages of 24 tokens", {}, 24},
    {"pages of 1 token", {}, 1},
    {"pages of 16 tokens, rotary embedding and append", [](CacheSketch& s) { rotate(s), append(s); }, 16},
    {"left padding", pad_left},
    {"left padding, pages of 16 tokens", pad_left, 16},
    {"packed queries (cu_seqlens_q)", pack_queries},
    {"padded queries (seqlens_q)", [](CacheSketch& s) { s.attention.seqlens_q = contiguous(kOne, kBatch); }},
    {"causal", [](CacheSketch& s) { s.attention.causal = true; }},
    {"sliding window", [](CacheSketch& s) { s.attention.window_left = 50, s.attention.window_right = 0; }},
    {"scale", [](CacheSketch& s) { s.attention.scale = 0.1; }},
    {"negative scale", [](CacheSketch& s) { s.attention.scale = -0.1; }},
    {"softcap", cap},
    {"ALiBi", slope},
    {"sinks", sink},
    {"values are the first columns of keys", take_values_from_keys},
    {"a fixed number of splits", [](CacheSketch& s) { s.cache.num_splits = 4; }},
    {"memory [E, S, H, D]", interleave_heads},
    {"rows not on 16-byte boundaries", move_rows_off_boundaries},
    {"append, rotary, pages, packed queries, softcap, ALiBi, sinks",
     [](CacheSketch& s) { append(s), rotate(s), pack_queries(s), cap(s), slope(s), sink(s); }, 16},
};

CacheQuestion with(const CacheOption& option, DType type, int64_t dim) {
  return {.dtype = type, .dim = dim, .page_size = option.page_size, .change = option.change};
}

// Every type, and head sizes that cover each padded size of the kernels, with and without a remainder.
constexpr int64_t kDims[] = {2, 31, 32, 64, 72, 96, 128, 160, 192, 250, 256, 512, 576};

std::string served_everywhere(const CacheOption& option, const char* place) {
  std::string refused;
  for (const DType type : kSupportTypes)
    for (const int64_t dim : kDims) {
      if (!ask({.dtype = type, .dim = dim}, place).served) continue;
      const Answer answer = ask(with(option, type, dim), place);
      if (!answer.served) refused += join(refused.empty() ? "" : "; ", name_of(type), " D=", dim, ": ", answer.reason);
    }
  return refused.empty() ? "yes" : refused;
}

std::string merged(DType type, int64_t dim, const char* place) {
  Placeholders memory;
  const auto o = [&] { return bhsd(memory.next(type, 1, 8, 1, dim), type, 1, 8, 1, dim); };
  const auto lse = [&] { return contiguous(memory.next(state_type(type), 1, 8), state_type(type), 1, 8, 1); };
  const MergeTensors tensors{.o_a = o(), .lse_a = lse(), .o_b = o(), .lse_b = lse(), .o = o()};
  try {
    plan_merge(describe(to_c(tensors), Memory{0}), cuda::arch_named(place));
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  return "served";
}

}  // namespace

Table cache_options() {
  Table table{{"option"}, {}};
  table.head.insert(table.head.end(), std::begin(kSupportPlaces), std::end(kSupportPlaces));
  table.head.insert(table.head.end(), {"portable kernel", "TMA"});
  for (const CacheOption& option : kOptions) {
    Cells row{option.name};
    for (const char* place : kSupportPlaces) row.push_back(served_everywhere(option, place));
    row.push_back(ask(with(option, DType::bf16, 128), "sm_80").options);
    row.push_back(ask_tma(with(option, DType::bf16, 128)));
    table.rows.push_back(row);
  }
  return table;
}

Table cache_head_pairs() {
  Table table{{"type", "D", "Dv", "values"}, {}};
  table.head.insert(table.head.end(), std::begin(kSupportPlaces), std::end(kSupportPlaces));
  const std::pair<int64_t, int64_t> sizes[] = {{64, 128}, {192, 128}, {576, 512}};
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [dim, dim_v] : sizes)
      for (const bool inside : {false, true}) {
        if (inside && dim < dim_v) continue;
        CacheQuestion question{.dtype = type, .dim = dim, .dim_v = dim_v, .heads = 128, .heads_k = 1};
        if (inside) question.change = take_values_from_keys;
        Cells row{name_of(type), join(dim), join(dim_v), inside ? "columns of keys" : "their own"};
        for (const char* place : kSupportPlaces) row.push_back(cell(ask(question, place)));
        table.rows.push_back(row);
      }
  return table;
}

Table cache_limits() {
  Table table{{"problem", "answer"}, {}};
  const auto on = [&](const char* place, const char* words, const CacheQuestion& question) {
    const Answer answer = ask(question, place);
    table.rows.push_back({join(words, ", ", place), answer.served ? "served" : answer.reason});
  };
  on(kSupportCpu, "head size 4096", {.dim = 4096});
  on("sm_90a", "head size 577", {.dim = 577});
  on("sm_90a", "head size 577 of v", {.dim_v = 577});
  on("sm_90a", "head size 257 of f64", {.dtype = DType::f64, .dim = 257});
  on("sm_86", "head size 257 of f32", {.dtype = DType::f32, .dim = 257});
  on(kSupportCpu, "room for 2^31 - 1 tokens", {.room = kMax});
  on("sm_90a", "room for 2^31 - 1024 tokens", {.room = kMax - 1023});
  on("sm_90a", "room for 2^31 - 1 tokens", {.room = kMax});
  on("sm_90a", "5000 splits of 2^20 tokens",
     {.room = 1 << 20, .change = [](CacheSketch& s) { s.cache.num_splits = 5000; }});
  on(kSupportCpu, "bias", {.change = [](CacheSketch& s) { s.attention.bias = s.rows(1, 1, 1, kSupportLength); }});
  on(kSupportCpu, "mask", {.change = [](CacheSketch& s) { s.attention.mask = s.rows(1, 1, 1, kSupportLength); }});
  on(kSupportCpu, "dropout", {.change = [](CacheSketch& s) { s.attention.dropout_p = 0.1; }});
  on(kSupportCpu, "top-left alignment",
     {.change = [](CacheSketch& s) { s.attention.alignment = Alignment::top_left; }});
  on(kSupportCpu, "pages and batch_idx",
     {.page_size = 16, .change = [](CacheSketch& s) { s.cache.batch_idx = contiguous(kEntries, kBatch); }});
  for (const char* place : {"sm_80", "sm_90a"})
    table.rows.push_back({join("merge_states of head size 4096, ", place), merged(DType::bf16, 4096, place)});
  return table;
}

}  // namespace cuflash::cli
