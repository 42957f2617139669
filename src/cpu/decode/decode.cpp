#include "cpu/decode/decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/decode/decode_scratch.h"
#include "cpu/decode/paged_rows.h"
#include "cpu/decode/score_rows.h"
#include "cpu/plan/workspace.h"
#include "cpu/threads/threads.h"
#include "cpu/tile/tile_counter.h"

namespace cuflash::cpu {
namespace {

template <class T>
DecodeKernels<T> kernels_for(const Problem&) {
  return decode_tables().f64;
}
template <>
DecodeKernels<float> kernels_for(const Problem& p) {
  DecodeKernels<float> kernels = decode_tables().f32;
  if (!decode_multiplies_bf16(p)) return kernels;
  const MatrixProducts& products = *decode_tables().bf16;
  kernels.pack = products.pack, kernels.round = products.round, kernels.dots = products.dots;
  kernels.add = products.add;
  return kernels;
}

template <class T>
class Decode {
 public:
  Decode(const ForwardProblem& p, const Execution& e, int64_t splits) : p_(p), e_(e), plan_(decode_plan(p, splits)) {
    const Checked tasks = Checked(p.batch) * plan_.head_blocks * plan_.splits;
    workers_ = worker_count(p, e, tasks);
    Arena scratch(nullptr), acc(nullptr);
    DecodeScratch<T>(scratch, p, plan_);
    Accumulator<T>(acc, p, plan_);
    // With several splits, each task keeps its own accumulator until they are merged.
    bytes_ = workspace_bytes(scratch.used() * workers_ + acc.used() * (plan_.splits > 1 ? tasks : Checked(workers_)));
    scratch_bytes_ = workspace_bytes(scratch.used()), accumulator_bytes_ = workspace_bytes(acc.used());
    tasks_ = tasks.value("q: the number of tasks is");
  }

  size_t bytes() const { return bytes_; }

  void run() {
    const Workspace workspace(e_, bytes());
    scratch_ = static_cast<std::byte*>(workspace.data());
    accumulators_ = scratch_ + static_cast<size_t>(workers_) * scratch_bytes_;
    run_tasks(e_, workers_, tasks_, [&](int64_t worker, int64_t task) {
      const Accumulator<T> acc = accumulator_at(plan_.splits > 1 ? task : worker);
      const WorkItem item = item_of(task);
      if (item.nothing_to_do) return;
      attend(item, acc, scratch_of(worker));
      if (plan_.splits > 1) return;
      for (int64_t head = 0; head < item.heads.size(); ++head) store(item, head, acc, scratch_of(worker).staging);
    });
    if (plan_.splits > 1)
      run_tasks(e_, workers_, p_.batch * p_.heads_k,
                [&](int64_t worker, int64_t task) { reduce_splits(task, scratch_of(worker).staging); });
    const int64_t queries = std::max<int64_t>(plan_.rows / p_.group(), 1);
    counter_.report(p_, {queries, kDecodeTile}, e_.tile_stats, [&](const Sequence& s) { return takes_decode(p_, s); });
  }

 private:
  // The work of one task: several KV heads of a batch entry, and one split of the keys.
  struct WorkItem {
    int64_t b;
    Range heads;
    Sequence seq;
    bool first;  // whether this is the first split
    Range keys;
    int64_t splits = 1;          // splits of this sequence that have keys; at least 1
    bool nothing_to_do = false;  // a split without keys, or a sequence of the panel path
  };

  Accumulator<T> accumulator_at(int64_t n) const {
    Arena arena(accumulators_ + static_cast<size_t>(n) * accumulator_bytes_);
    return Accumulator<T>(arena, p_, plan_);
  }
  DecodeScratch<T> scratch_of(int64_t worker) const {
    Arena arena(scratch_ + static_cast<size_t>(worker) * scratch_bytes_);
    return DecodeScratch<T>(arena, p_, plan_);
  }

  WorkItem item_of(int64_t task) const {
    const int64_t split = task % plan_.splits, run = task / plan_.splits % plan_.head_blocks;
    const int64_t b = task / plan_.splits / plan_.head_blocks;
    WorkItem item{b,
                  {run * plan_.heads_per_task, std::min((run + 1) * plan_.heads_per_task, p_.heads_k)},
                  sequence_of(p_, b),
                  split == 0,
                  {0, 0}};
    item.nothing_to_do = split > 0 || !takes_decode(p_, item.seq);
    if (item.seq.len_q == 0 || !takes_decode(p_, item.seq)) return item;
    // Splits start at the first tile that a query sees.
    const Range seen = keys_of_queries(p_, item.seq, {0, item.seq.len_q});
    const int64_t first = seen.begin / kDecodeTile * kDecodeTile;
    const int64_t keys = split_keys(plan_, seen.end - first), begin = first + split * keys;
    item.keys = {std::max(begin, seen.begin), std::min(begin + keys, seen.end)};
    if (!seen.empty()) item.splits = (seen.end - first + keys - 1) / keys;
    item.nothing_to_do = split >= item.splits;
    return item;
  }

  int64_t rows_of(const WorkItem& item) const { return p_.group() * item.seq.len_q; }

  // Row r of a KV head is query r % len_q of head r / len_q of its group.
  template <class Body>
  void for_rows(const WorkItem& item, Body body) const {
    for (int64_t head = 0; head < item.heads.size(); ++head) {
      for (int64_t r = 0; r < rows_of(item); ++r) {
        const int64_t h = (item.heads.begin + head) * p_.group() + r / item.seq.len_q;
        body(head, r, Head{item.b, h, item.heads.begin + head, item.seq}, r % item.seq.len_q);
      }
    }
  }

  int64_t offset_of(const ConstRows& from, const WorkItem& item, int64_t hk, int64_t key) const {
    return key_offset(p_, from, item.b, hk, item.seq.k_begin + key);
  }

  KeyRows key_rows(const ConstRows& from, const WorkItem& item, Range keys, int64_t dim) const {
    return {from.data,
            from.dtype,
            offset_of(from, item, item.heads.begin, keys.begin),
            from.head_stride,
            from.row_stride,
            item.heads.size(),
            keys.size(),
            dim};
  }

  // Calls body(rows, first head of the task, first key of the block) until all rows are read.
  template <class Body>
  void read(const ConstRows& from, const WorkItem& item, Range keys, int64_t dim, const DecodeScratch<T>& w,
            Body body) const {
    if (!p_.cache.page_size) return body(key_rows(from, item, keys, dim), int64_t{0}, int64_t{0});
    const int64_t begin = item.seq.k_begin;
    const PagedRows pages{p_, from, item.b, item.heads, begin + item.keys.end, dim, w.gathered};
    pages.read({begin + keys.begin, begin + keys.end}, body);
  }

  // Values are not tested one by one. A non-finite value shows in the accumulator, and then the work item is computed
  // again with care, because a weight of 0 would carry NaN or Inf to rows that do not see the value.
  void attend(const WorkItem& item, Accumulator<T> acc, DecodeScratch<T> w) {
    const int64_t rows = rows_of(item);
    acc.o.rows = w.q.rows = w.s.rows = rows;
    w.s.stride = decode_block(rows);
    for_rows(item, [&](int64_t head, int64_t r, const Head& at, int64_t i) {
      kernels_.widen(p_.q.data, p_.q.dtype, p_.q.at(at.b, at.h, at.seq.q_begin + i), p_.dim_qk, row_of(w.q, head, r));
    });
    if (kernels_.pack) kernels_.pack(w.q, item.heads.size(), p_.dim_qk);
    add_blocks(item, acc, w, &Decode::add_values);
    bool finite = true;
    for (int64_t n = 0; n < item.heads.size() * rows; ++n)
      finite &= kernels_.is_finite(acc.o.data + n * acc.o.stride, p_.dim_v);
    if (!finite) add_blocks(item, acc, w, &Decode::add_finite_values);
    count(item);
  }

  void start(const WorkItem& item, const Accumulator<T>& acc) const {
    for_rows(item, [&](int64_t head, int64_t r, const Head& at, int64_t) {
      T* o = row_of(acc.o, head, r);
      std::fill_n(o, acc.o.stride, T{0});
      // The sink is a score that takes part in the sum once and has no value.
      const bool sink = p_.sink && item.first;
      const T m = static_cast<T>(sink ? load_element(p_.sink.data, p_.sink.dtype, p_.sink.at(0, at.h)) : -INFINITY);
      acc.m[head * acc.o.rows + r] = m;
      acc.l[head * acc.o.rows + r] = m == -INFINITY ? T{0} : T{1};
    });
  }

  using AddValues = void (Decode::*)(const WorkItem&, Range keys, const Accumulator<T>&, const DecodeScratch<T>&) const;

  void add_blocks(const WorkItem& item, const Accumulator<T>& acc, const DecodeScratch<T>& w, AddValues add) const {
    start(item, acc);
    // Dropout groups are 16 keys long, so hidden keys are skipped in steps of 16. A cache has no dropout, but may have
    // no page for a hidden key.
    const int64_t first = p_.cache ? item.keys.begin : item.keys.begin / 16 * 16;
    for (int64_t begin = first; begin < item.keys.end; begin += w.s.stride) {
      const Range keys{begin, std::min(begin + w.s.stride, item.keys.end)};
      read(p_.k, item, keys, p_.dim_qk, w, [&](const KeyRows& k, int64_t head, int64_t key) {
        kernels_.dots(k, {row_of(w.q, head, 0), w.q.rows, w.q.stride}, static_cast<T>(p_.scale),
                      {row_of(w.s, head, 0) + key, w.s.rows, w.s.stride});
      });
      for_rows(item, [&](int64_t head, int64_t r, const Head& at, int64_t i) {
        const ScoreRow row = score_row(p_, at, i, keys);
        const int64_t n = head * w.s.rows + r;
        T* s = row_of(w.s, head, r);
        finish_scores(p_, kernels_, row, s, w.staging);
        T* o = row_of(acc.o, head, r);
        kernels_.softmax(keys.size(), s, acc.m + n, acc.l + n, o, acc.o.stride);
        if (p_.dropout.p > 0) drop(p_, row, s);
        if (kernels_.round) kernels_.round(keys.size(), s, o + acc.o.stride - kPadding);
      });
      (this->*add)(item, keys, acc, w);
    }
  }

  void add_values(const WorkItem& item, Range keys, const Accumulator<T>& acc, const DecodeScratch<T>& w) const {
    read(p_.v, item, keys, p_.dim_v, w, [&](const KeyRows& v, int64_t head, int64_t key) {
      kernels_.add(v, {row_of(w.s, head, 0) + key, w.s.rows, w.s.stride},
                   {row_of(acc.o, head, 0), acc.o.rows, acc.o.stride});
    });
  }

  // Multiplies a copy without the non-finite values, and then adds these pair by pair, only where a row sees them.
  void add_finite_values(const WorkItem& item, Range keys, const Accumulator<T>& acc, const DecodeScratch<T>& w) const {
    for (int64_t head = 0; head < item.heads.size(); ++head) {
      const int64_t hk = item.heads.begin + head;
      for_tiles({0, keys.size()}, kGatherKeys, keys.size(), [&](Range few) {
        int64_t nonfinite[kGatherKeys], nonfinite_count = 0;
        for (int64_t k = few.begin; k < few.end; ++k) {
          const int64_t from = offset_of(p_.v, item, hk, keys.begin + k);
          const size_t bytes = static_cast<size_t>(p_.dim_v * size_of(p_.dtype));
          std::byte* to = w.gathered + static_cast<size_t>(k - few.begin) * bytes;
          kernels_.widen(p_.v.data, p_.v.dtype, from, p_.dim_v, w.staging);
          if (kernels_.is_finite(w.staging, p_.dim_v)) {
            std::memcpy(to, static_cast<const std::byte*>(p_.v.data) + from * size_of(p_.dtype), bytes);
          } else {
            std::memset(to, 0, bytes);
            nonfinite[nonfinite_count++] = k;
          }
        }
        kernels_.add({w.gathered, p_.dtype, 0, 0, p_.dim_v, 1, few.size(), p_.dim_v},
                     {row_of(w.s, head, 0) + few.begin, w.s.rows, w.s.stride},
                     {row_of(acc.o, head, 0), acc.o.rows, acc.o.stride});
        for (int64_t n = 0; n < nonfinite_count; ++n) add_pairs(item, head, keys, nonfinite[n], acc, w);
      });
    }
  }

  void add_pairs(const WorkItem& item, int64_t head, Range keys, int64_t k, const Accumulator<T>& acc,
                 const DecodeScratch<T>& w) const {
    const int64_t hk = item.heads.begin + head;
    kernels_.widen(p_.v.data, p_.v.dtype, offset_of(p_.v, item, hk, keys.begin + k), p_.dim_v, w.staging);
    for (int64_t r = 0; r < w.s.rows; ++r) {
      const Head at{item.b, hk * p_.group() + r / item.seq.len_q, hk, item.seq};
      if (!sees(p_, score_row(p_, at, r % item.seq.len_q, keys), keys.begin + k)) continue;
      T* o = row_of(acc.o, head, r);
      for (int64_t d = 0; d < p_.dim_v; ++d) o[d] += w.staging[d] * row_of(w.s, head, r)[k];
    }
  }

  void count(const WorkItem& item) {
    for_tiles(item.keys, kDecodeTile, item.seq.len_k, [&](Range tile) {
      counter_.visit(tile_kind(p_, item.seq, {0, item.seq.len_q}, tile), item.heads.size() * p_.group());
    });
  }

  // The split-KV reduction for the rows of one KV head: merges the accumulators in the order of the keys.
  void reduce_splits(int64_t task, T* staging) const {
    const int64_t b = task / p_.heads_k, hk = task % p_.heads_k, run = hk / plan_.heads_per_task,
                  head = hk % plan_.heads_per_task;
    const int64_t first = (b * plan_.head_blocks + run) * plan_.splits;
    const WorkItem item = item_of(first);
    if (item.nothing_to_do) return;
    Accumulator<T> all = accumulator_at(first);
    all.o.rows = rows_of(item);
    for (int64_t r = 0; r < all.o.rows; ++r) {
      const int64_t row = head * all.o.rows + r;
      T top = all.m[row];
      for (int64_t n = 1; n < item.splits; ++n) top = std::max(top, accumulator_at(first + n).m[row]);
      for (int64_t n = 0; n < item.splits; ++n) {
        const Accumulator<T> acc = accumulator_at(first + n);
        // Equal maxima get weight 1 without exp(m - top), since inf - inf is NaN: a split whose max is -inf keeps its
        // NaN, and an infinite sink its weight.
        const T weight = acc.m[row] == top ? T{1} : std::exp(acc.m[row] - top);
        all.l[row] = (n == 0 ? 0 : all.l[row]) + acc.l[row] * weight;
        T* o = all.o.data + row * all.o.stride;
        const T* from = acc.o.data + row * all.o.stride;
        for (int64_t d = 0; d < all.o.stride; ++d) o[d] = (n == 0 ? 0 : o[d]) + from[d] * weight;
      }
      all.m[row] = top;
    }
    store(item, head, all, staging);
  }

  // l sums the weights before rounding. If all weights of a row were rounded up, its output would be too large;
  // dividing by the sum of the rounded weights makes it a weighted mean again.
  T rounding_correction(const T* acc) const { return kernels_.round && acc[1] != 0 ? acc[0] / acc[1] : T{1}; }

  // Writes O and LSE. Rows beyond the length of a padded sequence are written too. staging must hold a row.
  void store(const WorkItem& item, int64_t head, const Accumulator<T>& acc, T* staging) const {
    const int64_t written = p_.packed() ? item.seq.len_q : p_.len_q;
    for (int64_t n = 0; n < p_.group() * written; ++n) {
      const int64_t g = n / written, i = n % written;
      const int64_t h = (item.heads.begin + head) * p_.group() + g, to = item.seq.q_begin + i;
      const int64_t row = head * rows_of(item) + g * item.seq.len_q + i;
      const bool seen = i < item.seq.len_q && acc.l[row] != 0;
      if (seen) {
        const T* o = acc.o.data + row * acc.o.stride;
        const T factor = rounding_correction(o + acc.o.stride - kPadding) / acc.l[row];
        for (int64_t d = 0; d < p_.dim_v; ++d) staging[d] = o[d] * factor;
      } else {
        std::fill_n(staging, p_.dim_v, T{0});
      }
      store_row(p_.o.data, p_.o.dtype, p_.o.at(item.b, h, to), p_.dim_v, staging);
      if (!p_.lse) continue;
      const T lse = seen ? acc.m[row] + std::log(acc.l[row]) : -std::numeric_limits<T>::infinity();
      store_row(p_.lse.data, p_.lse.dtype, p_.lse.at(item.b, h, to), 1, &lse);
    }
  }

  const ForwardProblem& p_;
  const Execution& e_;
  const DecodeKernels<T> kernels_ = kernels_for<T>(p_);
  DecodePlan plan_;
  int64_t tasks_, workers_;
  size_t bytes_, scratch_bytes_, accumulator_bytes_;
  std::byte* scratch_ = nullptr;
  std::byte* accumulators_ = nullptr;
  TileCounter counter_{e_.tile_stats};
};

}  // namespace

void decode(const ForwardProblem& p, const Execution& e, int64_t splits) {
  p.dtype == DType::f64 ? Decode<double>(p, e, splits).run() : Decode<float>(p, e, splits).run();
}

size_t decode_workspace_size(const ForwardProblem& p, const Execution& e, int64_t splits) {
  return p.dtype == DType::f64 ? Decode<double>(p, e, splits).bytes() : Decode<float>(p, e, splits).bytes();
}

}  // namespace cuflash::cpu
