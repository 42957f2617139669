#include "cli/bench/grid.h"

#include <algorithm>
#include <set>

#include "check/memory/device.h"
#include "cli/arguments/exit.h"
#include "dtype.h"
#include "support/text.h"
#include "tuned/choice.h"

namespace cuflash::cli {

namespace {

using Sizes = std::vector<int64_t>;

constexpr size_t kMaxPoints = 10000;

template <class Value>
void fill(std::vector<Value>& list, std::vector<Value> otherwise) {
  if (list.empty()) list = std::move(otherwise);
}

void apply_preset(BenchOptions& o) {
  const bool sized = !o.batch.empty() || o.tokens;
  const bool headed = !o.heads.empty() || !o.hidden.empty();
  if (o.preset == "paper") {
    fill(o.directions, {kForward, kBackward});
    if (!sized) o.tokens = 16384;
    if (!headed) o.hidden = {2048};
    fill(o.head_dim, {64, 128, 256}), fill(o.len, {512, 1024, 2048, 4096, 8192, 16384}), fill(o.causal, {0, 1});
  } else if (o.preset == "training") {
    fill(o.directions, {kForward, kBackward});
    if (!sized) o.batch = {1, 4, 8, 16};
    if (!headed) o.hidden = {768, 1024, 2048, 4096};
    fill(o.head_dim, {64}), fill(o.len, {512, 1024, 2048, 4096}), fill(o.causal, {1});
  } else if (o.preset == "decode") {
    fill(o.directions, {kDecode});
    if (!sized) o.batch = {1, 8, 32};
    if (!headed) o.heads = {32}, fill(o.heads_k, {8});
    fill(o.head_dim, {128}), fill(o.len, {1024, 4096, 16384, 65536}), fill(o.page_size, {0, 64});
  }
}

BenchOptions completed(BenchOptions o, bool on_cuda) {
  apply_preset(o);
  fill(o.directions, {kForward});
  fill(o.dtypes, {on_cuda ? DType::bf16 : DType::f32});
  if (!o.tokens) fill(o.batch, {1});
  if (o.hidden.empty()) fill(o.heads, {8});
  fill(o.head_dim, {64}), fill(o.len, {512, 1024, 2048}), fill(o.causal, {0}), fill(o.page_size, {0});
  return o;
}

int64_t heads_of(const BenchOptions& o, size_t n, int64_t dim) {
  if (o.hidden.empty()) return o.heads[n];
  if (o.hidden[n] % dim != 0)
    throw UsageError(
        join("--hidden ", o.hidden[n], " is not a multiple of --head-dim ", dim, "; give --heads instead"));
  return o.hidden[n] / dim;
}

// The dimensions of the grid: each function sets one more member of the point and calls the next function.
class Grid {
 public:
  Grid(const BenchOptions& options, const std::string& device) : o_(options) { point_.device = device; }

  std::vector<BenchPoint> points() {
    for (const std::string& direction : o_.directions)
      for (const DType dtype : o_.dtypes) {
        point_.direction = direction, point_.dtype = name_of(dtype);
        add_heads();
      }
    return std::move(points_);
  }

 private:
  void add_heads() {
    const size_t count = o_.hidden.empty() ? o_.heads.size() : o_.hidden.size();
    for (const int64_t dim : o_.head_dim)
      for (const int64_t dim_v : o_.head_dim_v.empty() ? Sizes{dim} : o_.head_dim_v)
        for (size_t n = 0; n < count; ++n) {
          point_.head_dim = dim, point_.head_dim_v = dim_v, point_.heads_q = heads_of(o_, n, dim);
          for (const int64_t heads_k : o_.heads_k.empty() ? Sizes{point_.heads_q} : o_.heads_k) {
            if (point_.heads_q % heads_k != 0)
              throw UsageError(join("--heads-k ", heads_k, " does not divide the ", point_.heads_q, " query heads"));
            point_.heads_k = heads_k;
            add_lengths();
          }
        }
  }

  void add_lengths() {
    const bool decode = point_.direction == kDecode;
    for (const int64_t causal : o_.causal)
      for (const int64_t page_size : decode ? o_.page_size : Sizes{0})
        for (const int64_t len : o_.len)
          for (const int64_t len_k : !o_.len_k.empty() ? o_.len_k : Sizes{len})
            for (const int64_t len_q : !o_.len_q.empty() ? o_.len_q : Sizes{decode ? 1 : len})
              for (const int64_t batch : o_.tokens ? Sizes{std::max<int64_t>(1, *o_.tokens / len_k)} : o_.batch) {
                point_.causal = causal != 0, point_.page_size = page_size;
                point_.len_k = len_k, point_.len_q = len_q, point_.batch = batch;
                add();
              }
  }

  void add() {
    if (points_.size() == kMaxPoints) throw UsageError(join("the grid has more than ", kMaxPoints, " points"));
    points_.push_back(point_);
  }

  const BenchOptions& o_;
  BenchPoint point_;
  std::vector<BenchPoint> points_;
};

double product(std::initializer_list<int64_t> sizes) {
  double value = 1;
  for (const int64_t size : sizes) value *= static_cast<double>(size);
  return value;
}

}  // namespace

std::string bench_device(Device wanted) {
  if (wanted == Device::cpu) return "cpu";
  const std::string why = check::why_no_cuda();
  if (!why.empty() && wanted == Device::cuda) throw FlashAttentionError(CUFLASH_NO_DEVICE, why);
  return why.empty() ? "cuda" : "cpu";
}

std::vector<BenchPoint> bench_grid(const BenchOptions& options, const std::string& device) {
  const BenchOptions o = completed(options, device == "cuda");
  std::vector<BenchPoint> points = Grid(o, device).points();
  std::set<BenchPoint> seen;  // a value given twice is measured once
  std::erase_if(points, [&](const BenchPoint& point) { return !seen.insert(point).second; });
  return points;
}

DType dtype_of(const BenchPoint& point) {
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16})
    if (point.dtype == name_of(type)) return type;
  throw UsageError(join("no type ", in_quotes(point.dtype)));
}

double useful_operations(const BenchPoint& p) {
  double pairs = product({p.len_q, p.len_k});
  // Queries are aligned with the end of the keys; a causal square counts half, as usual.
  if (p.causal) pairs = p.len_q <= p.len_k ? pairs - product({p.len_q, p.len_q}) / 2 : product({p.len_k, p.len_k}) / 2;
  const double forward = 2 * pairs * product({p.batch, p.heads_q, p.head_dim + p.head_dim_v});
  return p.direction == kBackward ? 2.5 * forward : forward;
}

double key_value_bytes(const BenchPoint& p) {
  return product({p.batch, p.heads_k, p.len_k, p.head_dim + p.head_dim_v, size_of(dtype_of(p))});
}

double tensor_bytes(const BenchPoint& p) {
  const double rows = product({p.batch, p.heads_q, p.len_q});
  const double queries = rows * product({p.head_dim + p.head_dim_v, size_of(dtype_of(p))});
  const double copies = p.direction == kBackward ? 2 : 1;  // every tensor has a gradient
  const double page_tail = p.page_size > 0 ? static_cast<double>(p.page_size) / static_cast<double>(p.len_k) : 0;
  return copies * (queries + key_value_bytes(p) * (1 + page_tail)) + 8 * rows;
}

std::string point_text(const BenchPoint& p) {
  const std::string heads = p.heads_q == p.heads_k ? join(p.heads_q) : join(p.heads_q, "/", p.heads_k);
  const std::string length = p.len_q == p.len_k ? join(p.len_k) : join(p.len_q, "x", p.len_k);
  const std::string dim = p.head_dim == p.head_dim_v ? join(p.head_dim) : join(p.head_dim, "/", p.head_dim_v);
  return join(p.direction, " ", p.dtype, " B=", p.batch, " H=", heads, " S=", length, " D=", dim,
              p.causal ? " causal" : "", p.page_size > 0 ? join(" pages of ", p.page_size) : "",
              p.options != 0 ? join(" ", tuned::options_text(p.options)) : "");
}

}  // namespace cuflash::cli
