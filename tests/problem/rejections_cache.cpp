#include "tests/problem/rejections_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace cuflash::rejections {
namespace {

constexpr unsigned char kPoison = 0xa5;

}  // namespace

std::string describe(const CacheKind& kind) {
  const char* modes[] = {"dense", "padded", "packed"};
  const char* new_rows[] = {"none", "dense", "padded", "packed"};
  return std::string(cuflash::name_of(kind.dtype)) + " queries " + modes[static_cast<int>(kind.queries)] + ", new " +
         new_rows[static_cast<int>(kind.new_rows)] + (kind.paged ? ", paged" : ", contiguous");
}

CacheCall::CacheCall(const CacheKind& kind) : kind(kind) {
  cuflash_attention_init(&attention);
  cuflash_cache_tensors_init(&cache);
  cuflash_execution_init(&execution);
  execution.num_threads = 1;
  fill_queries();
  fill_cache();
  if (appends()) fill_new_rows();
  attention.scale = 0.5, attention.has_scale = 1;
  attention.causal = 1;
  attention.window_left = 20;
  attention.softcap = 20;
  cache.num_splits = 2;
}

template <class TensorStruct>
void CacheCall::bind(TensorStruct& t, DType dtype, const Shape& shape) {
  t.dtype = static_cast<int32_t>(dtype);
  t.rank = static_cast<int32_t>(shape.size());
  int64_t elements = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    t.shape[d] = shape[d], t.stride[d] = elements;
    elements *= shape[d];
  }
  constexpr bool is_output = std::is_same_v<TensorStruct, cuflash_mutable_tensor>;
  const unsigned char fill = is_output ? kPoison : 0;
  t.data = (is_output ? outputs_memory_ : inputs_memory_)
               .emplace_back(static_cast<size_t>(elements * size_of(dtype)), fill)
               .data();
}
void CacheCall::bind_integers(cuflash_tensor& t, const Shape& shape, const std::vector<int32_t>& values) {
  bind(t, DType::i32, shape);
  std::memcpy(const_cast<void*>(t.data), values.data(), values.size() * sizeof(int32_t));
}

void CacheCall::fill_queries() {
  using K = CacheKind;
  const bool packed = kind.queries == Mode::packed;
  const auto shape = [&](int64_t dim) {
    return packed ? Shape{6, K::kHeadsQ, dim} : Shape{K::kBatch, K::kHeadsQ, K::kQueries, dim};
  };
  bind(attention.q, kind.dtype, shape(K::kDim));
  if (packed) {
    bind_integers(attention.cu_seqlens_q, {3}, {0, 3, 5});
    attention.max_seqlen_q = K::kQueries;
  }
  if (kind.queries == Mode::padded) bind_integers(attention.seqlens_q, {2}, {3, 2});
  bind(attention.alibi_slopes, DType::f32, {K::kBatch, K::kHeadsQ});
  bind(attention.sink, kind.dtype, {K::kHeadsQ});
  bind(cache.o, kind.dtype, shape(K::kDimV));
  bind(cache.lse, state_type(kind.dtype), packed ? Shape{K::kHeadsQ, 6} : Shape{K::kBatch, K::kHeadsQ, K::kQueries});
}

void CacheCall::fill_cache() {
  using K = CacheKind;
  const int64_t entries = kind.paged ? K::kPages : K::kEntries, rows = kind.paged ? K::kPageSize : K::kRoom;
  bind(cache.k, kind.dtype, {entries, K::kHeadsK, rows, K::kDim});
  bind(cache.v, kind.dtype, {entries, K::kHeadsK, rows, K::kDimV});
  bind_integers(cache.seqlens, {2}, {5, 4});
  bind_integers(cache.leftpad, {2}, {1, 0});
  if (kind.paged) bind_integers(cache.block_table, {2, K::kColumns}, {1, 3, -1, 7, 0, 1000});
  else bind_integers(cache.batch_idx, {2}, {2, 0});
  bind(cache.rotary_cos, kind.dtype, {K::kPositions, K::kRotaryDim / 2});
  bind(cache.rotary_sin, kind.dtype, {K::kPositions, K::kRotaryDim / 2});
}

void CacheCall::fill_new_rows() {
  using K = CacheKind;
  const bool packed = kind.new_rows == NewRows::packed;
  const auto shape = [&](int64_t dim) {
    return packed ? Shape{4, K::kHeadsK, dim} : Shape{K::kBatch, K::kHeadsK, K::kNew, dim};
  };
  bind(cache.k_new, kind.dtype, shape(K::kDim));
  bind(cache.v_new, kind.dtype, shape(K::kDimV));
  if (packed) {
    bind_integers(cache.cu_seqlens_new, {3}, {0, 2, 3});
    cache.max_seqlen_new = K::kNew;
  }
  if (kind.new_rows == NewRows::padded) bind_integers(cache.seqlens_new, {2}, {2, 1});
}

bool CacheCall::outputs_untouched() const {
  return std::all_of(outputs_memory_.begin(), outputs_memory_.end(), [](const auto& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == kPoison; });
  });
}

std::vector<Slot> CacheCall::slots() {
  std::vector<Slot> all;
  const auto add = [&](const char* name, auto& t) { add_slot(all, name, t); };
  cuflash_attention& a = attention;
  cuflash_cache_tensors& c = cache;
  add("q", a.q), add("alibi_slopes", a.alibi_slopes), add("sink", a.sink);
  add("cu_seqlens_q", a.cu_seqlens_q), add("seqlens_q", a.seqlens_q);
  add("k", c.k), add("v", c.v), add("seqlens", c.seqlens), add("block_table", c.block_table);
  add("batch_idx", c.batch_idx), add("leftpad", c.leftpad), add("k_new", c.k_new), add("v_new", c.v_new);
  add("cu_seqlens_new", c.cu_seqlens_new), add("seqlens_new", c.seqlens_new);
  add("rotary_cos", c.rotary_cos), add("rotary_sin", c.rotary_sin), add("o", c.o), add("lse", c.lse);
  return all;
}

std::optional<Slot> CacheCall::slot(const std::string& name) {
  for (const Slot& slot : slots())
    if (slot.name == name) return slot;
  return std::nullopt;
}

std::byte* CacheCall::scratch(size_t bytes) {
  scratch_.emplace_back(bytes + 64);
  const size_t address = reinterpret_cast<uintptr_t>(scratch_.back().data());
  return reinterpret_cast<std::byte*>(scratch_.back().data() + (64 - address % 64) % 64);
}

void for_each_kind(const std::function<void(const CacheKind&)>& visit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Mode queries : {Mode::dense, Mode::padded, Mode::packed})
      for (const NewRows new_rows : {NewRows::none, NewRows::dense, NewRows::padded, NewRows::packed})
        for (const bool paged : {false, true}) visit({dtype, queries, new_rows, paged});
}

void expect_all_refused(const std::vector<CacheRule>& rules) {
  std::map<std::string, int> applied;
  for_each_kind([&](const CacheKind& kind) {
    for (const CacheRule& rule : rules) {
      CacheCall call(kind);
      const std::optional<Refusal> expected = rule.apply(call);
      if (!expected) continue;
      ++applied[rule.name];
      size_t bytes = 12345;
      const auto expect = [&](const char* what, cuflash_status status) {
        EXPECT_EQ(why_not_refused(call.outputs_untouched(), *expected, what, status), "")
            << rule.name << ", " << describe(kind);
      };
      expect("the workspace query", call.workspace_size(&bytes));
      EXPECT_EQ(bytes, 12345u) << rule.name;
      expect("explain", call.explain());
      expect("the call", call.run());
    }
  });
  for (const CacheRule& rule : rules) EXPECT_GT(applied[rule.name], 0) << rule.name << " applied to no call";
  EXPECT_EQ(applied.size(), rules.size()) << "two rules have the same name";
}

}  // namespace cuflash::rejections
