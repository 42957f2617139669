#include "cuda/families/plan_common.h"

#include <algorithm>
#include <bit>

#include "error.h"
#include "support/environment.h"

namespace cuflash::cuda {

namespace {

constexpr int kDims[] = {32, 64, 96, 128, 192, 256};
constexpr int64_t kLargestDim = 256;
// Positions inside a sequence are ints on the device, and a tile may reach beyond the end.
constexpr int64_t kLongest = (int64_t{1} << 31) - 1024;

[[noreturn]] void refuse(const std::string& sentence) { throw FlashAttentionError(CUFLASH_UNSUPPORTED, sentence); }

void require_dim(const char* name, int64_t dim) {
  if (dim > kLargestDim)
    refuse(join(name, ": head size ", dim, " is above ", kLargestDim,
                ", the largest of the CUDA kernels; the CPU backend computes any size"));
}

void require_length(const char* name, int64_t length) {
  if (length > kLongest)
    refuse(
        join(name, ": length ", length, " is above ", kLongest, ", the longest of the CUDA kernels; attend in parts"));
}

}  // namespace

Kernels wanted_kernels() { return environment().kernels == "portable" ? Kernels::portable : Kernels::best; }

int padded_dim(int64_t dim) {
  return *std::find_if(std::begin(kDims), std::end(kDims), [&](int padded) { return padded >= dim; });
}

void require_supported(const Problem& p) {
  require_dim("q", p.dim_qk);
  require_dim("v", p.dim_v);
  require_length("q", p.len_q);
  require_length("k", p.len_k);
}

int kernel_options(const Problem& p, CopyMode copy) {
  if (copy == kCopyElements) return kAllOptions;
  int options = 0;
  if (p.softcap > 0) options |= kSoftcap;
  if (p.slopes) options |= kAlibi;
  if (p.bias) options |= kBias;
  if (p.mask) options |= kMaskTensor;
  if (p.dropout.p > 0) options |= kDropout;
  if (!(options & (kSoftcap | kAlibi | kBias)) && must_scale_first(p)) options |= kScaleFirst;
  // In f32 the compiler gathers a whole tile of bias in registers, and spills, where it knows that there is a bias.
  const bool gathers = p.dtype == DType::f32 && options == kBias;
  return std::popcount(static_cast<unsigned>(options)) > 1 || gathers ? static_cast<int>(kAllOptions) : options;
}

namespace {
bool takes_tensor_maps(KernelKind kind) {
  switch (kind) {
    case KernelKind::sm90_forward:
    case KernelKind::sm90_backward:
    case KernelKind::sm90_dq:
    case KernelKind::sm90_kv: return true;
    default: return false;
  }
}
}  // namespace

Launch launch_of(const KernelKey& kernel, const Checked& ctas, int threads, int shared_bytes) {
  constexpr int64_t kMostX = (int64_t{1} << 31) - 1, kMostY = (1 << 16) - 1, kMost = kMostX * kMostY;
  const int64_t count = ctas.at_most(kMost + 1);
  if (count > kMost)
    refuse(join("q: this call has ", ctas, " tiles, more than ", kMost,
                ", the most of a CUDA grid; split it into calls over fewer sequences, heads or rows"));
  const int64_t x = std::min(count, kMostX);
  const int64_t y = x == 0 ? 1 : (count + x - 1) / x;
  Launch launch{kernel, static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1, threads, shared_bytes};
  launch.aligned_params = takes_tensor_maps(kernel.kind);
  return launch;
}

}  // namespace cuflash::cuda
