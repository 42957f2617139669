// Generation with a paged KV cache: the tokens must be the same as without a cache, where every step recomputes all of
// them. Prompts of different lengths go through a tiny model with random weights in one packed call. Then every
// sequence grows by one token per step, and one is forked after its prompt, whose pages both continuations read. Each
// call appends to the pages, applies the rotary embedding to queries and keys, and attends.
#include <cuflash/cached_attention.h>
#include <cuflash/page_pool.h>

#include <cstdio>
#include <stdexcept>

#include "direct.h"

namespace {

constexpr int64_t kVocabulary = 97, kLayers = 2, kHeads = 4, kHeadsK = 2, kDim = 16, kWidth = kHeads * kDim;
constexpr int64_t kPages = 32, kPageSize = 4, kPositions = 64, kTokens = 20;

using Values = std::vector<float>;
using Text = std::vector<int32_t>;

// x [rows, in] times the transpose of weights [out, in].
Values multiply(const Values& x, const Values& weights, int64_t in) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in, out = static_cast<int64_t>(weights.size()) / in;
  Values y(static_cast<size_t>(rows * out));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < out; ++n) {
      float sum = 0;
      for (int64_t d = 0; d < in; ++d) sum += x[row * in + d] * weights[n * in + d];
      y[row * out + n] = sum;
    }
  return y;
}

// Scales each row to unit length, so that its products with random weights are of size 1.
Values normalised(Values x) {
  for (size_t row = 0; row < x.size(); row += kWidth) {
    float squares = 0;
    for (size_t d = row; d < row + kWidth; ++d) squares += x[d] * x[d];
    for (size_t d = row; d < row + kWidth; ++d) x[d] /= std::sqrt(squares);
  }
  return x;
}

struct Qkv {
  Values q, k, v;  // [tokens, heads, kDim]
};

struct Layer {
  Values q, k, v, project;
};

struct Model {
  Values embedding = random_values<float>(kVocabulary * kWidth, 1);
  Values head = random_values<float>(kVocabulary * kWidth, 100);
  std::vector<Layer> layers;
  Values cos, sin;  // [kPositions, kDim / 2]

  Model() {
    for (unsigned n = 0; n < kLayers; ++n)
      layers.push_back({random_values<float>(kHeads * kDim * kWidth, 10 * n + 2),
                        random_values<float>(kHeadsK * kDim * kWidth, 10 * n + 3),
                        random_values<float>(kHeadsK * kDim * kWidth, 10 * n + 4),
                        random_values<float>(kWidth * kWidth, 10 * n + 5)});
    for (int64_t position = 0; position < kPositions; ++position)
      for (int64_t pair = 0; pair < kDim / 2; ++pair) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(pair) / kDim);
        cos.push_back(static_cast<float>(std::cos(angle))), sin.push_back(static_cast<float>(std::sin(angle)));
      }
  }

  // The logits after the tokens numbered `last`. attend(layer, qkv) computes attention of all tokens, [tokens, heads,
  // kDim].
  template <class Attend>
  Values logits(const Text& tokens, const Text& last, Attend attend) const {
    Values x;
    for (const int32_t token : tokens)
      x.insert(x.end(), &embedding[token * kWidth], &embedding[token * kWidth] + kWidth);
    for (size_t n = 0; n < kLayers; ++n) {
      const Values y = normalised(x);
      const Qkv qkv{multiply(y, layers[n].q, kWidth), multiply(y, layers[n].k, kWidth),
                    multiply(y, layers[n].v, kWidth)};
      const Values attended = multiply(normalised(attend(n, qkv)), layers[n].project, kWidth);
      for (size_t d = 0; d < x.size(); ++d) x[d] += attended[d];
    }
    Values rows;
    for (const int32_t row : last) rows.insert(rows.end(), &x[row * kWidth], &x[row * kWidth] + kWidth);
    return multiply(normalised(rows), head, kWidth);
  }
};

// The most likely token of a row of logits, or the second one if rank is 1.
int32_t best(const Values& logits, size_t row, int rank = 0) {
  Text order(kVocabulary);
  for (int32_t n = 0; n < kVocabulary; ++n) order[static_cast<size_t>(n)] = n;
  const float* values = &logits[row * kVocabulary];
  std::partial_sort(order.begin(), order.begin() + rank + 1, order.end(),
                    [=](int32_t a, int32_t b) { return values[a] > values[b]; });
  return order[static_cast<size_t>(rank)];
}

struct Cache {
  static constexpr int64_t kPage = kPageSize * kHeadsK * kDim;
  cuflash::PagePool pool{{.pages = kPages, .page_size = kPageSize, .max_sequences = 4}};
  std::vector<Values> k = std::vector<Values>(kLayers, Values(kPages*kPage, NAN)), v = k;

  void append(cuflash::CachedSequence sequence, int64_t tokens) {
    const cuflash::Append room = pool.append(sequence, tokens);
    if (!room) throw std::runtime_error("the pool has too few pages");
    if (!room.copy) return;
    for (auto* memories : {&k, &v})
      for (Values& memory : *memories)
        std::copy_n(&memory[room.copy->source * kPage], room.copy->tokens * kHeadsK * kDim,
                    &memory[room.copy->destination * kPage]);
  }

  // The logits after the new tokens of each sequence.
  Values step(const Model& model, const std::vector<cuflash::CachedSequence>& sequences,
              const std::vector<Text>& texts) {
    const int64_t batch = static_cast<int64_t>(sequences.size()), columns = kPositions / kPageSize;
    Text tokens, last, cu{0}, lengths(sequences.size()), table(static_cast<size_t>(batch * columns));
    pool.write_lengths(sequences, cuflash::contiguous(lengths.data(), batch));  // before the append
    for (size_t b = 0; b < texts.size(); ++b) {
      append(sequences[b], static_cast<int64_t>(texts[b].size()));
      tokens.insert(tokens.end(), texts[b].begin(), texts[b].end());
      cu.push_back(static_cast<int32_t>(tokens.size())), last.push_back(cu.back() - 1);
    }
    pool.write_block_table(sequences, cuflash::contiguous(table.data(), batch, columns));
    const int64_t total = cu.back();
    return model.logits(tokens, last, [&](size_t layer, const Qkv& qkv) {
      Values o(qkv.q.size());
      cuflash::flash_attention_with_cache({.q = cuflash::thd(qkv.q.data(), total, kHeads, kDim),
                                           .causal = true,
                                           .cu_seqlens_q = cuflash::contiguous(cu.data(), batch + 1)},
                                          {.k = cuflash::bshd(k[layer].data(), kPages, kPageSize, kHeadsK, kDim),
                                           .v = cuflash::bshd(v[layer].data(), kPages, kPageSize, kHeadsK, kDim),
                                           .seqlens = cuflash::contiguous(lengths.data(), batch),
                                           .block_table = cuflash::contiguous(table.data(), batch, columns),
                                           .k_new = cuflash::thd(qkv.k.data(), total, kHeadsK, kDim),
                                           .v_new = cuflash::thd(qkv.v.data(), total, kHeadsK, kDim),
                                           .cu_seqlens_new = cuflash::contiguous(cu.data(), batch + 1),
                                           .rotary_cos = cuflash::contiguous(model.cos.data(), kPositions, kDim / 2),
                                           .rotary_sin = cuflash::contiguous(model.sin.data(), kPositions, kDim / 2),
                                           .o = cuflash::thd(o.data(), total, kHeads, kDim)});
      return o;
    });
  }
};

std::vector<Text> generate_with_cache(const Model& model, const std::vector<Text>& prompts) {
  Cache cache;
  std::vector<cuflash::CachedSequence> sequences;
  for (size_t n = 0; n < prompts.size(); ++n) sequences.push_back(cache.pool.start().value());
  Values logits = cache.step(model, sequences, prompts);
  std::vector<Text> written;
  for (size_t n = 0; n < prompts.size(); ++n) written.push_back({best(logits, n)});
  sequences.push_back(cache.pool.fork(sequences[0]).value());
  written.push_back({best(logits, 0, 1)});  // the fork continues differently
  for (int64_t n = 1; n < kTokens; ++n) {
    std::vector<Text> newest;
    for (const Text& text : written) newest.push_back({text.back()});
    logits = cache.step(model, sequences, newest);
    for (size_t b = 0; b < written.size(); ++b) written[b].push_back(best(logits, b));
  }
  const cuflash::PagePoolStats stats = cache.pool.statistics();
  std::printf("%lld sequences with %lld tokens on %lld pages, %lld of them shared\n",
              static_cast<long long>(stats.sequences), static_cast<long long>(stats.tokens),
              static_cast<long long>(stats.used_pages), static_cast<long long>(stats.shared_pages));
  return written;
}

// Applies the rotary embedding to x [tokens, heads, kDim], as the call over the cache does internally.
Values rotated(const Model& model, Values x, int64_t heads) {
  for (size_t row = 0; row < x.size(); row += kDim) {
    const size_t position = row / static_cast<size_t>(heads * kDim);
    for (size_t pair = 0; pair < kDim / 2; ++pair) {
      const float cos = model.cos[position * kDim / 2 + pair], sin = model.sin[position * kDim / 2 + pair];
      const float a = x[row + pair], b = x[row + pair + kDim / 2];
      x[row + pair] = a * cos - b * sin, x[row + pair + kDim / 2] = b * cos + a * sin;
    }
  }
  return x;
}

Text generate_without_cache(const Model& model, Text text, int rank) {
  const size_t prompt = text.size();
  for (int64_t n = 0; n < kTokens; ++n) {
    const int64_t total = static_cast<int64_t>(text.size());
    const Values logits = model.logits(text, {static_cast<int32_t>(total - 1)}, [&](size_t, const Qkv& qkv) {
      const Values q = rotated(model, qkv.q, kHeads), k = rotated(model, qkv.k, kHeadsK);
      Values o(q.size());
      cuflash::flash_attention_forward({.q = cuflash::bshd(q.data(), 1, total, kHeads, kDim),
                                        .k = cuflash::bshd(k.data(), 1, total, kHeadsK, kDim),
                                        .v = cuflash::bshd(qkv.v.data(), 1, total, kHeadsK, kDim),
                                        .causal = true},
                                       {.o = cuflash::bshd(o.data(), 1, total, kHeads, kDim)});
      return o;
    });
    text.push_back(best(logits, 0, n == 0 ? rank : 0));
  }
  return {text.begin() + static_cast<int64_t>(prompt), text.end()};
}

void print(const char* words, const std::vector<Text>& written) {
  std::printf("%s\n", words);
  for (const Text& text : written) {
    for (const int32_t token : text) std::printf(" %2d", token);
    std::printf("\n");
  }
}

}  // namespace

int main() try {
  const Model model;
  std::mt19937 engine(7);
  std::vector<Text> prompts;
  for (const size_t length : {14, 3, 22}) {
    prompts.emplace_back(length);
    for (int32_t& token : prompts.back()) token = static_cast<int32_t>(engine() % kVocabulary);
  }
  const std::vector<Text> with_cache = generate_with_cache(model, prompts);
  std::vector<Text> without_cache;
  for (const Text& prompt : prompts) without_cache.push_back(generate_without_cache(model, prompt, 0));
  without_cache.push_back(generate_without_cache(model, prompts[0], 1));
  print("with a cache:", with_cache);
  print("without a cache:", without_cache);
  const bool same = with_cache == without_cache;
  std::printf("the tokens %s\n", same ? "are the same" : "differ");
  return same ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
