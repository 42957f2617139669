#include "cli/bench/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "check/cases/random.h"
#include "check/memory/cuda_session.h"
#include "cli/arguments/exit.h"
#include "cli/bench/grid.h"
#include "cuda/driver/stream.h"
#include "dtype.h"
#include "reference/naive.h"
#include "support/text.h"
#include "tuned/choice.h"

namespace cuflash::cli {

namespace {

// Length of the pattern that is repeated to fill a tensor. It is prime, so that no two of many thousands of rows are
// equal.
constexpr int64_t kPattern = 262147;

const std::vector<std::byte>& normal_pattern(DType type) {
  static std::map<DType, std::vector<std::byte>> made;
  std::vector<std::byte>& bytes = made[type];
  if (!bytes.empty()) return bytes;
  check::Random random(1);
  std::vector<double> values(kPattern);
  for (double& value : values) value = random.normal();
  bytes.resize(static_cast<size_t>(kPattern * size_of(type)));
  store_row(bytes.data(), type, 0, kPattern, values.data());
  return bytes;
}

std::vector<int32_t> shuffled(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  check::Random random(2);
  for (size_t n = numbers.size(); n > 1; --n) std::swap(numbers[n - 1], numbers[random.below(n)]);
  return numbers;
}

}  // namespace

BenchMemory::~BenchMemory() {
  for (std::byte* block : device_) check::CudaSession::of_thread().release(block);
}

void* BenchMemory::take(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 64));
  if (on_cuda_) return device_.emplace_back(check::CudaSession::of_thread().allocate(size));
  return host_.emplace_back(size).data();
}

void BenchMemory::write(void* to, const void* from, int64_t bytes) const {
  const auto size = static_cast<size_t>(bytes);
  if (!on_cuda_) {
    std::memcpy(to, from, size);
    return;
  }
  check::CudaSession& session = check::CudaSession::of_thread();
  session.upload(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size);
  session.wait();
}

void BenchMemory::clear(void* data, int64_t bytes) const {
  const auto size = static_cast<size_t>(bytes);
  if (on_cuda_) cuda::zero(data, size, check::CudaSession::of_thread().stream());
  else std::memset(data, 0, size);
}

std::vector<std::byte> BenchMemory::read(const void* from, int64_t bytes) const {
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  if (on_cuda_) {
    check::CudaSession& session = check::CudaSession::of_thread();
    session.download(content.data(), static_cast<const std::byte*>(from), content.size());
    session.wait();
  } else {
    std::memcpy(content.data(), from, content.size());
  }
  return content;
}

void* BenchMemory::normal(DType type, int64_t count) {
  const std::vector<std::byte>& pattern = normal_pattern(type);
  const int64_t size = size_of(type);
  // Each tensor starts at a different position of the pattern.
  int64_t begin = static_cast<int64_t>(host_.size() + device_.size()) * 7919 % kPattern;
  auto* data = static_cast<std::byte*>(take(count * size));
  for (int64_t at = 0; at < count; begin = 0) {
    const int64_t part = std::min(count - at, kPattern - begin);
    write(data + at * size, pattern.data() + begin * size, part * size);
    at += part;
  }
  return data;
}

void* BenchMemory::booleans(int64_t count) {
  check::Random random(3);
  std::vector<std::byte> values(static_cast<size_t>(count));
  for (std::byte& value : values) value = std::byte{random.below(10) < 7};
  void* data = take(count);
  write(data, values.data(), count);
  return data;
}

void* BenchMemory::integers(const std::vector<int32_t>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
  void* data = take(bytes);
  write(data, values.data(), bytes);
  return data;
}

// The slopes of the ALiBi paper, for any number of heads.
void* BenchMemory::slopes(int64_t heads) {
  std::vector<float> values;
  for (int64_t head = 1; head <= heads; ++head)
    values.push_back(static_cast<float>(std::exp2(-8.0 * static_cast<double>(head) / static_cast<double>(heads))));
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  void* data = take(bytes);
  write(data, values.data(), bytes);
  return data;
}

Tensor BenchProblem::tensor(void* data, int64_t length, int64_t heads, int64_t dim) const {
  return bshd(data, dtype_of(point_), point_.batch, length, heads, dim);
}

BenchProblem::BenchProblem(const BenchPoint& p, int32_t threads)
    : point_(p), on_cuda_(p.device == "cuda"), memory_(on_cuda_) {
  const DType type = dtype_of(p);
  const int64_t rows_q = p.batch * p.heads_q * p.len_q, rows_k = p.batch * p.heads_k * p.len_k;
  execution_.device = on_cuda_ ? Device::cuda : Device::cpu;
  execution_.num_threads = threads;
  execution_.workspace_from_pool = on_cuda_;
  if (on_cuda_) execution_.stream = check::CudaSession::of_thread().stream();

  const auto queries = [&](void* data, int64_t dim) { return tensor(data, p.len_q, p.heads_q, dim); };
  const auto keys = [&](void* data, int64_t dim) { return tensor(data, p.len_k, p.heads_k, dim); };
  const auto empty = [&](int64_t rows, int64_t dim) { return memory_.take(rows * dim * size_of(type)); };
  attention_.q = queries(memory_.normal(type, rows_q * p.head_dim), p.head_dim);
  attention_.causal = p.causal;
  add_options();
  outputs_.o = queries(empty(rows_q, p.head_dim_v), p.head_dim_v);
  if (p.direction == kDecode) {
    make_cache();
  } else {
    attention_.k = keys(memory_.normal(type, rows_k * p.head_dim), p.head_dim);
    attention_.v = keys(memory_.normal(type, rows_k * p.head_dim_v), p.head_dim_v);
    const DType lse_type = state_type(type);
    outputs_.lse = contiguous(memory_.take(rows_q * size_of(lse_type)), lse_type, p.batch, p.heads_q, p.len_q);
  }
  if (p.direction == kBackward) {
    flash_attention_forward(attention_, outputs_, execution_);
    gradients_.o = outputs_.o, gradients_.lse = outputs_.lse;
    gradients_.dout = queries(memory_.normal(type, rows_q * p.head_dim_v), p.head_dim_v);
    gradients_.dq = queries(empty(rows_q, p.head_dim), p.head_dim);
    gradients_.dk = keys(empty(rows_k, p.head_dim), p.head_dim);
    gradients_.dv = keys(empty(rows_k, p.head_dim_v), p.head_dim_v);
  }
  fit_workspace();
}

void BenchProblem::fit_workspace() {
  if (!on_cuda_) return;  // the library manages host workspaces itself
  const auto needed = static_cast<size_t>(workspace_bytes());
  if (execution_.workspace && needed <= execution_.workspace_size) return;
  execution_.workspace = memory_.take(static_cast<int64_t>(needed));
  execution_.workspace_size = needed;
}

// One bias and one mask for all heads, as in cuda/plan/typical.h.
void BenchProblem::add_options() {
  const BenchPoint& p = point_;
  const int64_t pairs = p.len_q * p.len_k;
  if ((p.options & tuned::kSoftcap) != 0) attention_.softcap = 30;
  if ((p.options & tuned::kDropout) != 0) attention_.dropout_p = 0.1, attention_.dropout_seed = 1;
  if ((p.options & tuned::kAlibi) != 0)
    attention_.alibi_slopes = contiguous(memory_.slopes(p.heads_q), DType::f32, p.heads_q);
  if ((p.options & tuned::kSinks) != 0)
    attention_.sink = contiguous(memory_.normal(DType::f32, p.heads_q), DType::f32, p.heads_q);
  if ((p.options & tuned::kBias) != 0)
    attention_.bias = contiguous(memory_.normal(dtype_of(p), pairs), dtype_of(p), 1, 1, p.len_q, p.len_k);
  if ((p.options & tuned::kMaskTensor) != 0)
    attention_.mask = contiguous(memory_.booleans(pairs), DType::boolean, 1, 1, p.len_q, p.len_k);
}

void BenchProblem::make_cache() {
  const BenchPoint& p = point_;
  const DType type = dtype_of(p);
  const bool paged = p.page_size > 0;
  const int64_t length = paged ? p.page_size : p.len_k;
  const int64_t pages = (p.len_k + length - 1) / length;  // per sequence
  if (p.batch * pages > std::numeric_limits<int32_t>::max())
    throw UsageError(
        join("--page-size ", p.page_size, " gives ", p.batch * pages, " pages, more than 32 bits can count"));
  const auto make = [&](int64_t dim) {
    return bshd(memory_.normal(type, p.batch * pages * length * p.heads_k * dim), type, p.batch * pages, length,
                p.heads_k, dim);
  };
  cache_.k = make(p.head_dim), cache_.v = make(p.head_dim_v);
  const std::vector<int32_t> lengths(static_cast<size_t>(p.batch), static_cast<int32_t>(p.len_k));
  cache_.seqlens = contiguous(memory_.integers(lengths), DType::i32, p.batch);
  if (paged) cache_.block_table = contiguous(memory_.integers(shuffled(p.batch * pages)), DType::i32, p.batch, pages);
  cache_.o = outputs_.o;
}

void BenchProblem::run() const {
  if (point_.direction == kForward) flash_attention_forward(attention_, outputs_, execution_);
  else if (point_.direction == kBackward) flash_attention_backward(attention_, gradients_, execution_);
  else flash_attention_with_cache(attention_, cache_, execution_);
}

std::vector<float> BenchProblem::results() const {
  constexpr int64_t kEvery = 13;
  const int64_t rows_q = point_.batch * point_.heads_q * point_.len_q;
  const int64_t rows_k = point_.batch * point_.heads_k * point_.len_k;
  std::vector<std::pair<void*, int64_t>> written{{outputs_.o.data, rows_q * point_.head_dim_v}};
  if (point_.direction == kBackward)
    written = {{gradients_.dq.data, rows_q * point_.head_dim},
               {gradients_.dk.data, rows_k * point_.head_dim},
               {gradients_.dv.data, rows_k * point_.head_dim_v}};
  const DType type = dtype_of(point_);
  for (const auto& [data, count] : written) memory_.clear(data, count * size_of(type));
  run();
  std::vector<float> values;
  for (const auto& [data, count] : written) {
    const std::vector<std::byte> bytes = memory_.read(data, count * size_of(type));
    for (int64_t n = 0; n < count; n += kEvery) load_row(bytes.data(), type, n, 1, &values.emplace_back());
  }
  return values;
}

double BenchProblem::workspace_bytes() const {
  if (point_.direction == kForward) return static_cast<double>(workspace_size(attention_, outputs_, execution_));
  if (point_.direction == kBackward) return static_cast<double>(workspace_size(attention_, gradients_, execution_));
  return static_cast<double>(workspace_size(attention_, cache_, execution_));
}

bool BenchProblem::has_naive() const { return !on_cuda_ && point_.page_size == 0; }

static Attention over_cache(Attention attention, const CacheTensors& cache) {
  attention.k = cache.k, attention.v = cache.v;
  return attention;
}

void BenchProblem::run_naive() const {
  if (point_.direction == kForward) reference::naive_forward(attention_);
  else if (point_.direction == kBackward) reference::naive_backward(attention_, gradients_.dout, {});
  else reference::naive_forward(over_cache(attention_, cache_));
}

double BenchProblem::naive_bytes() const {
  const bool backward = point_.direction == kBackward;
  const Attention attention = point_.direction == kDecode ? over_cache(attention_, cache_) : attention_;
  return static_cast<double>(backward ? reference::naive_backward_bytes(attention)
                                      : reference::naive_forward_bytes(attention));
}

}  // namespace cuflash::cli
