// Messages of calls over a KV cache, of merge_states and of the pool of pages.
#include <cuflash/cached_attention.h>
#include <cuflash/page_pool.h>

#include "cuda/plan/plan.h"
#include "problem/describe_cache.h"
#include "tests/docs/provoke.h"

namespace cuflash::docs {

namespace {

constexpr int64_t kBatch = 2, kHeadsQ = 4, kHeadsK = 2, kRoom = 8, kDim = 16, kPageSize = 4, kPages = 6;
const int32_t kHeld[] = {5, 8}, kTooMany[] = {5, 9}, kFew[] = {5, 1}, kFiveEach[] = {5, 5}, kPads[] = {0, 9};
const int32_t kBeyond[] = {0, 2}, kSame[] = {1, 1}, kStarts[] = {0, 1, 2};
const int32_t kTable[] = {3, 0, 1, 5}, kWrongTable[] = {3, -1, 1, 5}, kSharedTable[] = {3, 5, 1, 5};

// A step of two sequences that is valid: nothing is appended.
struct CacheCall {
  std::vector<float> memory = std::vector<float>(16384);
  Attention attention;
  CacheTensors cache;

  CacheCall() {
    attention.q = rows(kBatch, kHeadsQ, 1);
    cache.k = rows(kBatch, kHeadsK, kRoom), cache.v = rows(kBatch, kHeadsK, kRoom), cache.o = rows(kBatch, kHeadsQ, 1);
    cache.seqlens = contiguous(kHeld, kBatch);
  }
  Tensor rows(int64_t entries, int64_t heads, int64_t length, int64_t dim = kDim) {
    float* const data = memory.data() + used_;
    used_ += entries * heads * length * dim;
    return bhsd(data, entries, heads, length, dim);
  }
  Tensor angles(int64_t positions, int64_t width) {
    float* const data = memory.data() + used_;
    used_ += positions * width;
    return contiguous(data, positions, width);
  }
  void append(int64_t count) { cache.k_new = rows(kBatch, kHeadsK, count), cache.v_new = rows(kBatch, kHeadsK, count); }
  void use_pages() {
    cache.k = rows(kPages, kHeadsK, kPageSize), cache.v = rows(kPages, kHeadsK, kPageSize);
    cache.block_table = contiguous(kTable, kBatch, 2);
  }
  // Sequence 0 appends a row, and sequence 1 so many, and both have one page.
  void share_a_page(int32_t appended, const int32_t* held) {
    use_pages(), append(1);
    appended_ = {1, appended};
    cache.block_table = contiguous(kSharedTable, kBatch, 2), cache.seqlens = contiguous(held, kBatch);
    cache.seqlens_new = contiguous(std::as_const(appended_).data(), kBatch);
  }
  void rotate(int64_t positions, int64_t width) {
    cache.rotary_cos = angles(positions, width), cache.rotary_sin = angles(positions, width);
  }
  // Plans the call for a GPU.
  void plan() const {
    Snapshot copies;
    const CacheProblem problem = describe(detail::to_c(attention), to_c(cache), Memory{0}, copies);
    const cuda::Arch arch = cuda::arch_named("sm_90a");
    cuda::plan_kv(problem, arch, arch.usual_sms);
  }

 private:
  std::vector<int32_t> appended_;
  int64_t used_ = 0;
};

// The call with one defect.
template <class Change>
void attend(Change change) {
  CacheCall call;
  change(call);
  flash_attention_with_cache(call.attention, call.cache);
}
template <class Change>
void plan(Change change) {
  CacheCall call;
  change(call);
  call.plan();
}

template <class Change>
void merge(Change change) {
  std::vector<float> o(4096), lse(256);
  const auto part = [&](int64_t n) { return bhsd(o.data() + n * 1024, kBatch, kHeadsQ, 1, kDim); };
  const auto sums = [&](int64_t n) { return contiguous(lse.data() + n * 64, kBatch, kHeadsQ, 1); };
  MergeTensors tensors{.o_a = part(0), .lse_a = sums(0), .o_b = part(1), .lse_b = sums(1), .o = part(2)};
  change(tensors);
  merge_states(tensors);
}

// A pool with a sequence of three tokens.
template <class Use>
void pool(Use use) {
  PagePool pages({.pages = 4, .page_size = 2, .max_sequences = 2});
  const CachedSequence sequence = pages.start().value();
  pages.append(sequence, 3);
  use(pages, sequence);
}

}  // namespace

std::vector<Message> cache_messages() {
  return {
      // Arguments that a cache excludes
      {"cache-k", {}, [] { attend([](CacheCall& c) { c.attention.k = c.cache.k; }); }},
      {"cache-mask", {}, [] { attend([](CacheCall& c) { c.attention.mask = c.attention.q; }); }},
      {"cache-dropout", {}, [] { attend([](CacheCall& c) { c.attention.dropout_p = 0.1; }); }},
      {"cache-alignment", {}, [] { attend([](CacheCall& c) { c.attention.alignment = Alignment::top_left; }); }},
      // Lengths
      {"cache-seqlens", {}, [] { attend([](CacheCall& c) { c.cache.seqlens = contiguous(kTooMany, kBatch); }); }},
      {"cache-full", {}, [] { attend([](CacheCall& c) { c.append(1); }); }},
      {"cache-pages-full", {}, [] { attend([](CacheCall& c) { c.use_pages(), c.append(2); }); }},
      {"cache-leftpad", {}, [] { attend([](CacheCall& c) { c.cache.leftpad = contiguous(kPads, kBatch); }); }},
      {"cache-no-bound",
       {},
       [] {
         plan([](CacheCall& c) {
           c.append(1);
           for (ConstTensor* t : {&c.cache.k_new, &c.cache.v_new}) *t = thd(t->data, DType::f32, 2, kHeadsK, kDim);
           c.cache.cu_seqlens_new = contiguous(kStarts, kBatch + 1);
         });
       }},
      // Entries and pages
      {"cache-entries", {}, [] { attend([](CacheCall& c) { c.cache.k.shape[0] = c.cache.v.shape[0] = 1; }); }},
      {"cache-batch-idx", {}, [] { attend([](CacheCall& c) { c.cache.batch_idx = contiguous(kBeyond, kBatch); }); }},
      {"cache-batch-idx-twice",
       {},
       [] {
         attend([](CacheCall& c) {
           c.append(1), c.cache.seqlens = contiguous(kFew, kBatch), c.cache.batch_idx = contiguous(kSame, kBatch);
         });
       }},
      {"cache-batch-idx-pages",
       {},
       [] { attend([](CacheCall& c) { c.use_pages(), c.cache.batch_idx = contiguous(kSame, kBatch); }); }},
      {"cache-block-table",
       {},
       [] { attend([](CacheCall& c) { c.use_pages(), c.cache.block_table = contiguous(kWrongTable, kBatch, 2); }); }},
      {"cache-page-twice", {}, [] { attend([](CacheCall& c) { c.share_a_page(1, kFiveEach); }); }},
      {"cache-page-read", {}, [] { attend([](CacheCall& c) { c.share_a_page(0, kHeld); }); }},
      // Appended rows
      {"cache-new-v", {}, [] { attend([](CacheCall& c) { c.append(1), c.cache.v_new = {}; }); }},
      {"cache-new-k", {}, [] { attend([](CacheCall& c) { c.append(1), c.cache.k_new = {}; }); }},
      {"cache-new-v-in-k",
       {},
       [] { attend([](CacheCall& c) { c.append(1), c.cache.v = c.cache.k, c.cache.v.shape[3] = 8; }); }},
      {"cache-repeats", {}, [] { attend([](CacheCall& c) { c.append(1), c.cache.k.stride[0] = 0; }); }},
      {"cache-aliases", {}, [] { attend([](CacheCall& c) { c.cache.o.data = c.cache.k.data; }); }},
      // Rotary embedding
      {"cache-rotary-width", {}, [] { attend([](CacheCall& c) { c.rotate(64, kDim); }); }},
      {"cache-rotary-positions", {}, [] { attend([](CacheCall& c) { c.rotate(6, kDim / 2); }); }},
      {"cache-rotary-queries",
       {},
       [] {
         attend([](CacheCall& c) {
           c.attention.q = c.rows(kBatch, kHeadsQ, 2), c.cache.o = c.rows(kBatch, kHeadsQ, 2);
           c.cache.seqlens = contiguous(kFew, kBatch), c.rotate(64, kDim / 2);
         });
       }},
      // Splits
      {"cache-splits", {}, [] { attend([](CacheCall& c) { c.cache.num_splits = -1; }); }},
      // Problems that the kernels do not compute
      {"cache-large-head",
       {},
       [] {
         plan([](CacheCall& c) {
           c.attention.q = c.rows(kBatch, kHeadsQ, 1, 640), c.cache.k = c.rows(1, 1, 1, 640);
           c.cache.k.shape = {kBatch, kHeadsK, kRoom, 640}, c.cache.k.stride = {0, 0, 0, 1};
         });
       }},
      {"cache-large-f64",
       {},
       [] {
         plan([](CacheCall& c) {
           const auto queries = [&] { return c.rows(kBatch, kHeadsQ, 1, 640).data; };  // twice as many floats
           c.attention.q = bhsd(queries(), DType::f64, kBatch, kHeadsQ, 1, 320);
           for (Tensor* t : {&c.cache.k, &c.cache.v})
             *t = {c.rows(1, 1, 1, 640).data, DType::f64, 4, {kBatch, kHeadsK, kRoom, 320}, {0, 0, 0, 1}};
           c.cache.o = bhsd(queries(), DType::f64, kBatch, kHeadsQ, 1, 320);
         });
       }},
      {"cache-long",
       {},
       [] {
         plan([](CacheCall& c) {
           for (Tensor* t : {&c.cache.k, &c.cache.v}) t->shape[2] = (int64_t{1} << 31) - 1, t->stride = {0, 0, 0, 1};
         });
       }},
      {"cache-many-rows",
       {},
       [] {
         plan([](CacheCall& c) {
           constexpr int64_t kQueries = int64_t{1} << 30;
           c.attention.q.shape[2] = c.cache.o.shape[2] = kQueries;
           c.attention.q.stride = {0, 0, 0, 1};
           c.cache.o.stride = {kHeadsQ * kDim * kQueries, kDim * kQueries, kDim, 1};
         });
       }},
      {"cache-many-splits",
       {},
       [] {
         plan([](CacheCall& c) {
           for (Tensor* t : {&c.cache.k, &c.cache.v}) t->shape[2] = 1 << 20, t->stride = {0, 0, 0, 1};
           c.cache.num_splits = 5000;
         });
       }},
      // Merging
      {"merge-shape", {}, [] { merge([](MergeTensors& t) { t.o_b.shape[1] = kHeadsK; }); }},
      {"merge-type", {}, [] { merge([](MergeTensors& t) { t.o_b.dtype = DType::bf16; }); }},
      {"merge-lse", {}, [] { merge([](MergeTensors& t) { t.lse_b = {}; }); }},
      {"merge-output", {}, [] { merge([](MergeTensors& t) { t.o.data = const_cast<void*>(t.lse_a.data); }); }},
      // Pages
      {"released-sequence", {}, [] { pool([](PagePool& p, CachedSequence s) { p.release(s), p.append(s, 1); }); }},
      {"pool-truncate", {}, [] { pool([](PagePool& p, CachedSequence s) { p.truncate(s, 4); }); }},
      {"pool-trim", {}, [] { pool([](PagePool& p, CachedSequence s) { p.trim(s, 0, 1), p.trim(s, 2, 1); }); }},
      {"pool-columns",
       {},
       [] {
         pool([](PagePool& p, CachedSequence s) {
           int32_t table[1];
           p.write_block_table({&s, 1}, contiguous(table, 1, 1));
         });
       }},
      {"pool-config", {}, [] { PagePool({.pages = 4, .page_size = 0, .max_sequences = 2}); }},
      {"pool-memory",
       {},
       [] {
         PagePool({.pages = 1, .page_size = 1, .max_sequences = 1 << 20, .max_pages_per_sequence = (1ll << 31) - 1});
       }},
  };
}

}  // namespace cuflash::docs
