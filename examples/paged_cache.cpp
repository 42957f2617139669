// A paged KV cache: two continuations share the pages of one prompt, a shared page is copied when one of them first
// writes into it, and one sequence is trimmed to its first and last tokens. The cache has one layer and one head, for
// brevity.
#include <cuflash/page_pool.h>

#include <cstdio>

#include "direct.h"

namespace {

constexpr int64_t kPages = 16, kPageSize = 4, kDim = 8, kPage = kPageSize * kDim;

// The memory that the pool manages. In an inference engine it is on the GPU, [pages, page_size, heads, dim] per layer.
struct Cache {
  cuflash::PagePool pool{{.pages = kPages, .page_size = kPageSize, .max_sequences = 4}};
  std::vector<float> k = std::vector<float>(kPages * kPage), v = k;

  float* row(std::vector<float>& memory, const std::vector<int32_t>& pages, int64_t token) {
    return &memory[static_cast<size_t>(pages[token / kPageSize] * kPage + token % kPageSize * kDim)];
  }

  // Reserves room, copies a shared page if needed, then writes the new tokens: k and v of `tokens` rows.
  bool append(cuflash::CachedSequence sequence, const std::vector<float>& new_k, const std::vector<float>& new_v) {
    const int64_t before = pool.state(sequence).tokens, tokens = static_cast<int64_t>(new_k.size()) / kDim;
    const cuflash::Append room = pool.append(sequence, tokens);
    if (!room) {
      std::printf("%s: %lld pages are missing\n", room.fit == cuflash::Fit::pool_full ? "pool full" : "sequence full",
                  static_cast<long long>(room.missing_pages));
      return false;
    }
    if (room.copy)
      for (auto* memory : {&k, &v})
        std::copy_n(&(*memory)[room.copy->source * kPage], room.copy->tokens * kDim,
                    &(*memory)[room.copy->destination * kPage]);
    const std::vector<int32_t> pages = pool.pages(sequence);
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(&new_k[t * kDim], kDim, row(k, pages, before + t));
      std::copy_n(&new_v[t * kDim], kDim, row(v, pages, before + t));
    }
    return true;
  }

  // The rows that an attention kernel reads through the block table, gathered.
  std::vector<float> gather(std::vector<float>& memory, cuflash::CachedSequence sequence) {
    const std::vector<int32_t> pages = pool.pages(sequence);
    std::vector<float> rows;
    for (int64_t t = 0; t < pool.state(sequence).tokens; ++t)
      rows.insert(rows.end(), row(memory, pages, t), row(memory, pages, t) + kDim);
    return rows;
  }

  // Attends one query to everything that the sequence holds, and returns the error against the tokens that it should
  // hold.
  double error(cuflash::CachedSequence sequence, const std::vector<float>& expected_k,
               const std::vector<float>& expected_v) {
    const auto q = random_values<float>(kDim, 99);
    const auto keys = gather(k, sequence), values = gather(v, sequence);
    const int64_t held = static_cast<int64_t>(keys.size()) / kDim,
                  count = static_cast<int64_t>(expected_k.size()) / kDim;
    std::vector<float> o(kDim);
    cuflash::flash_attention_forward({.q = cuflash::bhsd(q.data(), 1, 1, 1, kDim),
                                      .k = cuflash::bhsd(keys.data(), 1, 1, held, kDim),
                                      .v = cuflash::bhsd(values.data(), 1, 1, held, kDim)},
                                     {.o = cuflash::bhsd(o.data(), 1, 1, 1, kDim)});
    const DirectRow row = direct_row(q.data(), expected_k.data(), expected_v.data(), count, kDim, kDim);
    return distance(o.data(), row.o.data(), kDim);
  }
};

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

int main() try {
  Cache cache;
  const auto prompt_k = random_values<float>(10 * kDim, 1), prompt_v = random_values<float>(10 * kDim, 2);
  const auto k1 = random_values<float>(7 * kDim, 3), v1 = random_values<float>(7 * kDim, 4);
  const auto k2 = random_values<float>(3 * kDim, 5), v2 = random_values<float>(3 * kDim, 6);

  const cuflash::CachedSequence first = cache.pool.start().value();
  bool fits = cache.append(first, prompt_k, prompt_v);
  const cuflash::CachedSequence second = cache.pool.fork(first).value();
  fits = cache.append(first, k1, v1) && cache.append(second, k2, v2) && fits;

  const cuflash::CachedSequence batch[] = {first, second};
  int32_t block_table[2][8], cache_seqlens[2];  // what a paged attention call takes
  cache.pool.write_block_table(batch, cuflash::contiguous(&block_table[0][0], 2, 8));
  cache.pool.write_lengths(batch, cuflash::contiguous(cache_seqlens, 2));
  const cuflash::PagePoolStats stats = cache.pool.statistics();
  std::printf("%d and %d tokens on %lld pages, %lld of them shared, %lld rows unused\n", cache_seqlens[0],
              cache_seqlens[1], static_cast<long long>(stats.used_pages), static_cast<long long>(stats.shared_pages),
              static_cast<long long>(stats.wasted_tokens));
  double error = std::max(cache.error(first, joined(prompt_k, k1), joined(prompt_v, v1)),
                          cache.error(second, joined(prompt_k, k2), joined(prompt_v, v2)));

  // 17 tokens on the pages 0-3, 4-7, 8-11, 12-15, 16: trim drops the pages that hold none of the first 2 and the last
  // 5.
  cache.pool.trim(first, 2, 5);
  const auto kept = [](const std::vector<float>& rows) {
    return joined({rows.begin(), rows.begin() + 4 * kDim}, {rows.begin() + 12 * kDim, rows.end()});
  };
  error = std::max(error, cache.error(first, kept(joined(prompt_k, k1)), kept(joined(prompt_v, v1))));
  std::printf("trimmed to %lld tokens, the next one is number %lld; largest error %.1e\n",
              static_cast<long long>(cache.pool.state(first).tokens),
              static_cast<long long>(cache.pool.state(first).position), error);
  return fits && error < 1e-5 ? 0 : 1;
} catch (const cuflash::FlashAttentionError& error) {
  std::fprintf(stderr, "%s: %s\n", cuflash_status_name(error.status()), error.what());
  return 1;
}
