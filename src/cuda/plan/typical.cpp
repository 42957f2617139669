#include "cuda/plan/typical.h"

#include <algorithm>

#include "cuda/plan/head_sizes.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

// Addresses that are far apart, on 16-byte boundaries or one element after them.
class Addresses {
 public:
  Addresses(DType dtype, bool aligned) : offset_(aligned ? 0 : static_cast<uintptr_t>(size_of(dtype))) {}
  explicit Addresses(const Typical& t) : Addresses(t.dtype, t.aligned) {}
  void* next() {
    constexpr uintptr_t kApart = uintptr_t{1} << 40;
    return reinterpret_cast<void*>(kApart * ++count_ + offset_);
  }

 private:
  uintptr_t offset_, count_ = 0;
};

// [batch, length, heads, dim], the usual layout of models
template <class R>
R rows(Addresses& addresses, DType type, int64_t length, int64_t heads, int64_t dim) {
  R r;
  r.data = addresses.next();
  r.dtype = type;
  r.batch_stride = length * heads * dim, r.head_stride = dim, r.row_stride = heads * dim;
  return r;
}

// One matrix for all heads: [1, 1, len_q, len_k]
template <class R>
R score_rows(Addresses& addresses, DType type, int64_t len_k) {
  R r;
  r.data = addresses.next();
  r.dtype = type;
  r.row_stride = len_k;
  return r;
}

template <class H>
H head_values(Addresses& addresses) {
  H h;
  h.data = addresses.next();
  h.head_stride = 1;
  return h;
}

void fill(Problem& p, const Typical& t, Addresses& addresses) {
  p.dtype = t.dtype;
  p.batch = t.batch, p.heads_q = t.heads_q, p.heads_k = t.heads_k;
  p.len_q = t.len_q, p.len_k = t.len_k, p.dim_qk = t.dim_qk, p.dim_v = t.dim_v;
  p.q = rows<ConstRows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_qk);
  p.k = rows<ConstRows>(addresses, t.dtype, t.len_k, t.heads_k, t.dim_qk);
  p.v = rows<ConstRows>(addresses, t.dtype, t.len_k, t.heads_k, t.dim_v);
  p.scale = t.options & kScaleFirst ? -0.125 : 0.125;
  if (t.causal) p.window_right = 0;
  if (t.options & kSoftcap) p.softcap = 30;
  if (t.options & kAlibi) p.slopes = head_values<ConstHeadValues>(addresses);
  if (t.options & kBias) p.bias = score_rows<ConstRows>(addresses, t.dtype, t.len_k);
  if (t.options & kMaskTensor) {
    p.mask = score_rows<ConstRows>(addresses, DType::boolean, t.len_k);
    p.mask_len_q = t.len_q, p.mask_len_k = t.len_k;
  }
  if (t.options & kDropout) p.dropout.p = 0.1;
  if (t.sink) p.sink = head_values<ConstHeadValues>(addresses);
  if (!t.packed) return;
  p.total_q = t.batch * t.len_q / 2, p.total_k = t.batch * t.len_k / 2;
  p.cu_q = static_cast<const int32_t*>(addresses.next()), p.cu_k = static_cast<const int32_t*>(addresses.next());
  p.q.batch_stride = p.k.batch_stride = p.v.batch_stride = 0;
}

template <class R>
R lse_rows(Addresses& addresses, const Typical& t) {
  R r;
  r.data = addresses.next();
  r.dtype = state_type(t.dtype);
  r.batch_stride = t.heads_q * t.len_q, r.head_stride = t.len_q, r.row_stride = 1;
  return r;
}

void add(std::vector<KernelKey>& keys, const Launch& launch) {
  if (launch.grid_x != 0 && std::find(keys.begin(), keys.end(), launch.kernel) == keys.end())
    keys.push_back(launch.kernel);
}

void add_kernels_of(std::vector<KernelKey>& keys, const Typical& t, const Arch& arch) {
  for (const bool causal : {false, true})
    for (const int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {  // tiles depend on the length
      Typical of_length = t;
      of_length.causal = causal, of_length.len_q = of_length.len_k = length;
      add(keys, plan_forward(forward_of(of_length), arch).launch);
    }
  for (const int64_t heads_k : {t.heads_k, int64_t{1}})  // dK and dV of a large group are sums of several tasks
    for (const Reproducible reproducible : {Reproducible::no, Reproducible::yes}) {
      Typical grouped = t;
      grouped.heads_k = heads_k;
      const BackwardPlan plan = plan_backward(backward_of(grouped), arch, reproducible);
      for (const Launch* launch : plan.launches()) add(keys, *launch);
    }
}

void add_forward(std::vector<KernelKey>& keys, const Typical& t, const Arch& arch) {
  for (const SplitReduction reduction : {SplitReduction::exchange, SplitReduction::ticket}) {
    const ForwardPlan plan = plan_forward(forward_of(t), arch, kernel_preference(), nullptr, {.reduction = reduction});
    for (const Launch* launch : plan.launches()) add(keys, *launch);
  }
}
// Few queries of one sequence, with and without heads that share keys, one short sequence, and packed sequences.
void add_other_forwards(std::vector<KernelKey>& keys, const Typical& t, const Arch& arch) {
  for (const int64_t heads_k : {2, 8})
    for (const int64_t len_q : {1, 16, 64, 128, 192, 1024}) {
      Typical few = t;
      few.batch = 1, few.heads_q = 8, few.heads_k = heads_k, few.len_q = len_q, few.len_k = 16384;
      add_forward(keys, few, arch);
    }
  for (const int64_t length : {512, 2048}) {
    Typical alone = t;
    alone.batch = 1, alone.heads_q = alone.heads_k = 4, alone.len_q = alone.len_k = length;
    add_forward(keys, alone, arch);
  }
  for (const int64_t length : {512, 1024, 2048, 4096, 16384}) {
    Typical packed = t;
    packed.packed = true, packed.batch = 16, packed.heads_q = packed.heads_k = 32;
    packed.len_q = packed.len_k = length;
    if (t.options == 0) add_forward(keys, packed, arch);
  }
}

}  // namespace

ForwardProblem forward_of(const Typical& t) {
  ForwardProblem p;
  Addresses addresses(t);
  fill(p, t, addresses);
  p.o = rows<Rows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_v);
  p.lse = lse_rows<Rows>(addresses, t);
  if (t.packed) p.o.batch_stride = p.lse.batch_stride = 0, p.lse.head_stride = p.total_q;
  return p;
}

BackwardProblem backward_of(const Typical& t) {
  BackwardProblem p;
  Addresses addresses(t);
  fill(p, t, addresses);
  p.o = rows<ConstRows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_v);
  p.dout = rows<ConstRows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_v);
  p.lse = lse_rows<ConstRows>(addresses, t);
  p.dq = rows<Rows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_qk);
  p.dk = rows<Rows>(addresses, t.dtype, t.len_k, t.heads_k, t.dim_qk);
  p.dv = rows<Rows>(addresses, t.dtype, t.len_k, t.heads_k, t.dim_v);
  if (p.bias) {
    p.dbias = score_rows<Rows>(addresses, t.dtype, t.len_k);
    p.bias_batch = p.bias_heads = 1, p.bias_len_q = t.len_q, p.bias_len_k = t.len_k;
  }
  if (p.sink) p.dsink = head_values<HeadValues>(addresses);
  return p;
}

CacheProblem cache_of(const TypicalCache& t) {
  CacheProblem p;
  Addresses addresses(t.dtype, t.aligned);
  p.dtype = t.dtype;
  p.batch = t.batch, p.heads_q = t.heads_q, p.heads_k = t.heads_k;
  p.len_q = t.len_q, p.len_k = t.room, p.dim_qk = t.dim_qk, p.dim_v = t.dim_v;
  const int64_t length = t.page_size ? t.page_size : t.room;
  p.q = rows<ConstRows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_qk);
  p.k = rows<ConstRows>(addresses, t.dtype, length, t.heads_k, t.dim_qk);
  p.v = t.v_in_k ? p.k : rows<ConstRows>(addresses, t.dtype, length, t.heads_k, t.dim_v);
  p.v_in_k = t.v_in_k;
  p.o = rows<Rows>(addresses, t.dtype, t.len_q, t.heads_q, t.dim_v);
  p.scale = t.options & kScaleFirst ? -0.125 : 0.125;
  p.window_left = t.window_left, p.window_right = 0;
  if (t.options & kSoftcap) p.softcap = 30;
  if (t.options & kAlibi) p.slopes = head_values<ConstHeadValues>(addresses);
  p.cache.rows = static_cast<const int32_t*>(addresses.next());
  p.cache.page_size = t.page_size;
  p.cache.entries = t.page_size ? t.batch * (t.room / t.page_size) : t.batch;
  if (t.page_size) p.cache.table = static_cast<const int32_t*>(addresses.next());
  p.cache.len_new = t.len_new;
  p.num_splits = t.num_splits;
  return p;
}

MergeProblem merge_of(DType dtype, int64_t dim) {
  Addresses addresses(dtype, true);
  MergeProblem p;
  p.batch = 2, p.heads = 16, p.len = 64, p.dim = dim;
  p.o_a = p.o_b = rows<ConstRows>(addresses, dtype, p.len, p.heads, dim);
  p.o = rows<Rows>(addresses, dtype, p.len, p.heads, dim);
  return p;
}

std::vector<Typical> typical_problems(const TypicalChoice& choice) {
  constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32, DType::f64};
  constexpr int64_t kDims[] = {64, 80, 96, 128, 192, 256};
  // Portable kernels are compiled once for all sets of several options; those of sm_90a for each set.
  constexpr int kOptions[] = {
      0, kSoftcap, kAlibi, kBias, kMaskTensor, kDropout, kBias | kDropout, kMaskTensor | kDropout, kAlibi | kDropout};
  std::vector<Typical> problems;
  for (const DType type : choice.dtypes.empty() ? std::vector(std::begin(kTypes), std::end(kTypes)) : choice.dtypes)
    for (const int64_t dim : choice.dims.empty() ? std::vector(std::begin(kDims), std::end(kDims)) : choice.dims)
      for (const int options : kOptions)
        for (const int64_t length : {512, 8192})
          for (const bool causal : {false, true})
            problems.push_back({.dtype = type,
                                .dim_qk = dim,
                                .dim_v = dim,
                                .options = options,
                                .sink = true,
                                .causal = causal,
                                .len_q = length,
                                .len_k = length});
  return problems;
}

std::vector<TypicalCache> typical_caches(const TypicalChoice& choice) {
  constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32, DType::f64};
  struct Dims {
    int64_t qk, v;
    bool v_in_k;
  };
  constexpr Dims kDims[] = {{64, 64, false},   {80, 80, false},   {96, 96, false}, {128, 128, false},
                            {192, 128, false}, {256, 256, false}, {576, 512, true}};
  std::vector<TypicalCache> caches;
  for (const DType type : choice.dtypes.empty() ? std::vector(std::begin(kTypes), std::end(kTypes)) : choice.dtypes)
    for (const Dims& dims : kDims) {
      const auto& wanted = choice.dims;
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), dims.qk) == wanted.end()) continue;
      if (dims.qk > 256 && size_of(type) != 2) continue;
      for (const int options : {0, int{kSoftcap}, int{kAlibi}})
        for (const int64_t group : {1, 32, 64, 128, 256})  // decides the rows of a tile
          for (const int64_t batch : {1, 128})             // decides its stages
            for (const int64_t len_new : {0, 1})           // decides whether it is a fast decode
              caches.push_back({.dtype = type,
                                .dim_qk = dims.qk,
                                .dim_v = dims.v,
                                .options = options,
                                .batch = batch,
                                .heads_q = group,
                                .heads_k = 1,
                                .len_new = len_new,
                                .v_in_k = dims.v_in_k});
    }
  return caches;
}

// Many queries over a cache, of one sequence and of several: kernels of forward for lengths on the device, and for pages.
static void add_prefills(std::vector<KernelKey>& keys, TypicalCache t, const Arch& arch) {
  if (size_of(t.dtype) != 2 || t.options != 0 || t.v_in_k || std::max(t.dim_qk, t.dim_v) > kLargestHeadSize) return;
  t.heads_q = 32, t.heads_k = 8;
  for (const int64_t batch : {1, 16})
    for (const int64_t len_q : {128, 512, 2048})
      for (const int64_t page_size : {0, 64}) {
        t.batch = batch, t.len_q = t.len_new = len_q, t.page_size = page_size;
        const KvPlan plan = plan_kv(cache_of(t), arch, arch.usual_sms);
        if (!plan.forward) return;
        for (const Launch* launch : plan.launches()) add(keys, *launch);
      }
}

static void add_if_supported(std::vector<KernelKey>& keys, const TypicalCache& t, const Arch& arch) {
  try {
    for (const SplitReduction reduction : {SplitReduction::exchange, SplitReduction::ticket}) {
      const KvPlan plan = plan_kv(cache_of(t), arch, arch.usual_sms, kernel_preference(), nullptr, reduction);
      for (const Launch* launch : plan.launches()) add(keys, *launch);
    }
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_UNSUPPORTED)
      throw;  // some architectures have too little shared memory for large rows
  }
}

std::vector<KernelKey> typical_kernels(const Arch& arch, const TypicalChoice& choice) {
  std::vector<KernelKey> keys;
  for (const int64_t keys_of_mask : {16, 17}) {  // rows that start on 16 bytes, and others
    ConstRows mask;
    mask.row_stride = keys_of_mask;
    add(keys, plan_mask_summary(mask, {1, 1, 16, keys_of_mask}, arch));
  }
  for (const Typical& t : typical_problems(choice)) add_kernels_of(keys, t, arch);
  for (const TypicalCache& t : typical_caches(choice)) {
    add_if_supported(keys, t, arch);
    if (t.heads_q == 1 && t.batch == 1) add_prefills(keys, t, arch);
    add(keys, plan_merge(merge_of(t.dtype, t.dim_v), arch).launch);
  }
  for (const Typical& t : typical_problems(choice)) add_other_forwards(keys, t, arch);
  return keys;
}

}  // namespace cuflash::cuda
