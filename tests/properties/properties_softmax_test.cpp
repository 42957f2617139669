// Properties of softmax with a mask that need no oracle: it can be computed in parts, and a hidden key does not exist.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check/cases/fill.h"
#include "check/cases/memory.h"
#include "check/run/compare.h"
#include "check/run/run.h"
#include "dtype.h"
#include "error.h"
#include "property.h"
#include "reference/naive.h"
#include "reference/noise.h"
#include "reference/oracle.h"
#include "tests/shared/device.h"

namespace cuflash::check {
namespace {

using test::property;

// Keys [begin, end) of a dense problem.
Attention keys_of(const Attention& whole, const Case& c, int64_t begin, int64_t end) {
  const auto slice = [&](ConstTensor t, size_t d) {
    t.data = static_cast<const std::byte*>(t.data) + begin * t.stride[d] * size_of(t.dtype);
    t.shape[d] = end - begin;
    return t;
  };
  Attention part = whole;
  part.k = slice(whole.k, 2);
  part.v = slice(whole.v, 2);
  if (c.bias) part.bias = slice(whole.bias, 3);
  if (c.mask) part.mask = slice(whole.mask, 3);
  if (begin > 0) part.sink = {};  // it takes part once
  return part;
}

struct Merged {
  std::vector<double> o, lse;
};

void merge(Merged& all, const std::vector<double>& o, const std::vector<double>& lse, size_t dim_v) {
  if (all.lse.empty()) {
    all = {o, lse};
    return;
  }
  for (size_t row = 0; row < lse.size(); ++row) {
    const double largest = std::max(all.lse[row], lse[row]);
    if (std::isinf(largest)) continue;  // nothing seen so far
    const double before = std::exp(all.lse[row] - largest), now = std::exp(lse[row] - largest);
    for (size_t n = row * dim_v; n < (row + 1) * dim_v; ++n)
      all.o[n] = (before * all.o[n] + now * o[n]) / (before + now);
    all.lse[row] = largest + std::log(before + now);
  }
}

// Positions are relative to the length, so what depends on them (causal, window, ALiBi, dropout) is left out; the mask
// tensor hides keys.
Case divisible_case(Choices& choices) {
  Case c = draw_case(choices, test::test_limits());
  if (c.mode == Mode::packed) c.lengths_q.clear(), c.lengths_k.clear();
  if (c.mode == Mode::padded) c.lengths_k.clear();
  if (c.mode == Mode::packed) c.mode = Mode::dense;
  c.give_max_seqlen = c.causal = c.live_nan = false;
  c.window_left = c.window_right = -1;
  c.alibi_rank = 0;
  c.dropout_p = 0;
  c.o_dtype = state_type(c.dtype);  // the parts are not rounded before they are merged
  return c;
}

TEST(Property, SoftmaxOverAnySplitEqualsSoftmax) {
  property("softmax over any split of a row equals softmax", 1000, [](Choices& choices) -> std::string {
    const Case c = divisible_case(choices);
    CaseMemory memory(c);
    const Attention whole = memory.attention();
    Merged merged;
    std::string cuts;
    for (int64_t begin = 0, end = 0; begin == 0 || begin < c.len_k; begin = end) {
      end = begin + choices.between(std::min<int64_t>(1, c.len_k - begin), c.len_k - begin);
      cuts += join(" ", end);
      memory.start_forward();
      forward(memory.device(), keys_of(whole, c, begin, end), memory.forward_outputs(true), {.num_threads = 1});
      merge(merged, memory.o.read(), memory.lse.read(), static_cast<size_t>(c.dim_v));
      if (end == 0) break;
    }
    const reference::Forward expected = reference::oracle_forward(whole), naive = reference::naive_forward(whole),
                             noise = reference::forward_noise(whole);
    std::string text =
        disagreement("merged o", Quantity::output, c.dtype, c.o_dtype, merged.o, expected.o, naive.o, noise.o);
    if (text.empty())
      text =
          disagreement("merged lse", Quantity::lse, c.dtype, c.o_dtype, merged.lse, expected.lse, naive.lse, noise.lse);
    return text.empty() ? "" : join(text, " | cut at", cuts, " | ", describe(c));
  });
}

// Every case hides something: causal, a window or a mask, with either alignment.
Case hiding_case(Choices& choices) {
  Case c = draw_case(choices, test::test_limits());
  c.garbage = c.live_nan = false;
  c.gradients = c.every_gradient();
  switch (choices.below(3)) {
    case 0: c.causal = true; break;
    case 1: c.window_left = choices.between(0, 4); break;
    default: c.window_right = choices.between(0, 4); break;
  }
  return c;
}

TEST(Property, WhatNoQuerySeesHasNoInfluence) {
  property("hidden values have no influence", 1000, [](Choices& choices) -> std::string {
    const Case c = hiding_case(choices);
    CaseMemory memory(c);
    call_both(memory);
    const auto before = memory.results();
    memory.change_hidden(c.data_seed + 1);
    call_both(memory);
    const auto after = memory.results();
    const char* const names[] = {"o", "lse", "dq", "dk", "dv", "dbias", "dsink"};
    for (size_t n = 0; n < before.size(); ++n)
      if (before[n] != after[n]) return join(names[n], " changed with hidden values | ", describe(c));
    return "";
  });
}

// o, lse and dq of one query.
std::vector<double> results_of(const CaseMemory& memory, const Case& c, int64_t b, int64_t h, int64_t i) {
  std::vector<double> values{memory.lse.get(memory.lse_offset(memory.lse, b, h, i))};
  const int64_t row = memory.first_q(b) + i;
  for (int64_t d = 0; d < c.dim_v; ++d) values.push_back(memory.o.get(row_offset(memory.o.view(), b, h, row) + d));
  for (int64_t d = 0; d < c.dim; ++d) values.push_back(memory.dq.get(row_offset(memory.dq.view(), b, h, row) + d));
  return values;
}

struct Query {
  int64_t b, h, i;
};

// The queries that do not see key j of (b, head_k), and all of the other batch entries and groups.
std::vector<Query> blind_queries(const CaseMemory& memory, const Case& c, int64_t of_b, int64_t head_k, int64_t j) {
  std::vector<Query> queries;
  const int64_t group = c.heads_q / c.heads_k;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads_q; ++h)
      for (int64_t i = 0; i < c.length_q(b); ++i)
        if (b != of_b || h / group != head_k || !memory.visible(b, h, i, j)) queries.push_back({b, h, i});
  return queries;
}

TEST(Property, AKeyHasNoInfluenceOnQueriesThatDoNotSeeIt) {
  property("a key has no influence on queries that do not see it", 1000, [](Choices& choices) -> std::string {
    Case c = hiding_case(choices);
    for (Layout* layout : {&c.k, &c.v}) layout->repeat_batch = layout->repeat_heads = false;
    const int64_t b = choices.between(0, std::max<int64_t>(0, c.batch - 1));
    if (c.batch == 0 || c.length_k(b) == 0) return "";
    const int64_t head = choices.between(0, c.heads_k - 1), j = choices.between(0, c.length_k(b) - 1);
    CaseMemory memory(c);
    call_both(memory);
    const std::vector<Query> blind = blind_queries(memory, c, b, head, j);
    std::vector<std::vector<double>> before;
    for (const Query& q : blind) before.push_back(results_of(memory, c, q.b, q.h, q.i));

    const double other = choices.one_of<double>({-3, 40, std::numeric_limits<double>::quiet_NaN()});
    for (int64_t d = 0; d < c.dim; ++d)
      memory.k.set(row_offset(memory.k.view(), b, head, memory.first_k(b) + j) + d, other);
    // A V that is not finite may reach its neighbours through 0 * NaN.
    for (int64_t d = 0; d < c.dim_v; ++d)
      memory.v.set(row_offset(memory.v.view(), b, head, memory.first_k(b) + j) + d, 7);
    memory.k.freeze();
    memory.v.freeze();
    call_both(memory);
    for (size_t n = 0; n < blind.size(); ++n)
      if (before[n] != results_of(memory, c, blind[n].b, blind[n].h, blind[n].i))
        return join("query ", blind[n].i, " of head ", blind[n].h, " of batch ", blind[n].b, " changed with key ", j,
                    " of head ", head, " of batch ", b, " | ", describe(c));
    return "";
  });
}

}  // namespace
}  // namespace cuflash::check
