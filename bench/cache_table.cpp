// A decode step over a KV cache: how fast K and V are read, depending on their layout. All contestants share one block of memory.
#include <cuflash/cached_attention.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "bench/measure.h"
#include "bench/tables.h"
#include "dtype.h"

namespace cuflash::bench {
namespace {

constexpr int64_t kHeads = 8, kLength = 16384, kDim = 128;
constexpr int64_t kPageSizes[] = {256, 64, 16, 4, 1};

class DecodeStep {
 public:
  DecodeStep(DType type, int64_t heads_q, bool heads_first)
      : type_(type), heads_q_(heads_q), heads_first_(heads_first), rows_{static_cast<int32_t>(kLength)} {
    q_ = random(heads_q, 1), k_ = random(kHeads * kLength, 2), v_ = random(kHeads * kLength, 3);
    o_.resize(q_.size());
    for (const int64_t page_size : kPageSizes) {
      std::vector<int32_t> table(static_cast<size_t>(kLength / page_size));
      std::iota(table.begin(), table.end(), 0);
      std::shuffle(table.begin(), table.end(), std::mt19937(4));
      tables_.push_back(std::move(table));
    }
  }

  void forward(int threads) {
    Attention attention{.q = queries(), .k = keys(k_, kLength), .v = keys(v_, kLength)};
    flash_attention_forward(attention, {.o = output()}, {.num_threads = threads});
  }
  void contiguous_cache(int threads) { attend(kLength, {}, threads); }
  void paged_cache(size_t n, int threads) {
    attend(kPageSizes[n], contiguous(tables_[n].data(), int64_t{1}, kLength / kPageSizes[n]), threads);
  }
  double bytes() const { return 2.0 * static_cast<double>(kHeads * kLength * kDim * size_of(type_)); }

 private:
  using Bytes = std::vector<std::byte>;

  Bytes random(int64_t rows, uint32_t seed) const {
    Bytes bytes(static_cast<size_t>(rows * kDim * size_of(type_)));
    store_row(bytes.data(), type_, 0, rows * kDim, random_values(rows * kDim, seed).data());
    return bytes;
  }
  Tensor keys(Bytes& data, int64_t length) const {
    void* at = data.data();
    return heads_first_ ? bhsd(at, type_, kLength / length, kHeads, length, kDim)
                        : bshd(at, type_, kLength / length, length, kHeads, kDim);
  }
  ConstTensor queries() { return bhsd(static_cast<void*>(q_.data()), type_, 1, heads_q_, 1, kDim); }
  Tensor output() { return bhsd(static_cast<void*>(o_.data()), type_, 1, heads_q_, 1, kDim); }

  void attend(int64_t length, const ConstTensor& table, int threads) {
    CacheTensors cache;
    cache.k = keys(k_, length), cache.v = keys(v_, length), cache.seqlens = contiguous(rows_.data(), int64_t{1});
    cache.block_table = table, cache.o = output();
    flash_attention_with_cache({.q = queries(), .k = {}, .v = {}}, cache, {.num_threads = threads});
  }

  DType type_;
  int64_t heads_q_;
  bool heads_first_;
  std::vector<int32_t> rows_;
  std::vector<std::vector<int32_t>> tables_;
  Bytes q_, k_, v_, o_;
};

}  // namespace

void cache(const Settings& settings) {
  print_header({"type", "heads", "K and V", "forward", "cache", "pages of 256", "64", "16", "4", "1"});
  const int threads = std::max(settings.threads, 1);
  for (const DType type : {DType::f32, DType::bf16})
    for (const int64_t heads_q : {kHeads, 4 * kHeads})
      for (const bool heads_first : {true, false}) {
        DecodeStep step(type, heads_q, heads_first);
        std::vector<Run> runs{[&] { step.forward(threads); }, [&] { step.contiguous_cache(threads); }};
        for (size_t n = 0; n < std::size(kPageSizes); ++n) runs.push_back([&, n] { step.paged_cache(n, threads); });
        std::vector<std::string> row{name_of(type), std::to_string(heads_q),
                                     heads_first ? "[B, H, S, D]" : "[B, S, H, D]"};
        for (const double seconds : best_times(runs, settings.seconds))
          row.push_back(text("%.1f", step.bytes() / seconds * 1e-9));
        print_row(row);
      }
}

}  // namespace cuflash::bench
