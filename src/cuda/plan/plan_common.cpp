#include "cuda/plan/plan_common.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "error.h"
#include "params.h"
#include "support/environment.h"

namespace cuflash::cuda {
namespace {

void require_dim(const char* name, int64_t dim, int64_t largest, const char* kernels) {
  if (dim > largest)
    refuse(join(name, ": head size ", dim, " is above ", largest, ", the maximum of the CUDA kernels", kernels,
                "; the CPU backend computes any size"));
}

void require_length(const char* name, int64_t length) {
  if (length > kLongestSequence)
    refuse(join(name, ": length ", length, " is above ", kLongestSequence,
                ", the maximum of the CUDA kernels; attend in parts"));
}

void require_dense(const Problem& p) {
  require_dim("q", p.dim_qk, kLargestHeadSize, "");
  require_dim("v", p.dim_v, kLargestHeadSize, "");
  require_length("q", p.len_q);
  require_length("k", p.len_k);
}

}  // namespace

void refuse(const std::string& sentence) { throw FlashAttentionError(CUFLASH_UNSUPPORTED, sentence); }

KernelPreference kernel_preference() {
  return environment().kernels == "portable" ? KernelPreference::portable : KernelPreference::best;
}

void require_supported(const ForwardProblem& p) { require_dense(p); }
void require_supported(const BackwardProblem& p) { require_dense(p); }
void require_supported(const CacheProblem& p) {
  require_dim("q", p.dim_qk, kLargestCachedHeadSize, " over a cache");
  require_dim("v", p.dim_v, kLargestCachedHeadSize, " over a cache");
  // The rows of all heads of a group are numbered by ints, too.
  if (p.len_q > kLongestSequence / p.group())
    refuse(join("q: ", p.len_q, " queries of ", p.group(), " heads that share keys are more than ", kLongestSequence,
                " rows, the maximum of the CUDA kernels; attend in parts"));
  if (p.len_k > kLongestSequence)
    refuse(join(p.cache.page_size ? "block_table" : "k", ": has room for ", p.len_k, " tokens, more than ",
                kLongestSequence, ", the maximum of the CUDA kernels"));
}

float tanh_argument(const Problem& p) {
  if (!(p.softcap > 0)) return 0;
  constexpr double kLargest = 1e30;
  const double argument = p.scale / p.softcap * kTanhArgument, size = std::abs(argument);
  return size <= kLargest && size >= 1 / kLargest ? static_cast<float>(argument) : 0;
}

int problem_options(const Problem& p) {
  int options = 0;
  if (p.softcap > 0) options |= kSoftcap;
  if (p.slopes) options |= kAlibi;
  if (p.bias) options |= kBias;
  if (p.has_mask()) options |= kMaskTensor;
  if (p.dropout.p > 0) options |= kDropout;
  if (!(options & (kSoftcap | kBias)) && must_scale_first(p)) options |= kScaleFirst;
  return options;
}

int portable_options(const Problem& p, CopyMode copy) {
  if (copy == kCopyElements) return kAllOptions;
  const int options = problem_options(p);
  // An f32 kernel that is compiled for a bias alone gathers a whole tile of it in registers, and spills.
  const bool gathers = p.dtype == DType::f32 && options == kBias;
  return std::popcount(static_cast<unsigned>(options)) > 1 || gathers ? static_cast<int>(kAllOptions) : options;
}

std::string options_text(int options) {
  if (options == kAllOptions) return "every option";
  std::string text;
  for (const auto& [bit, name] : {std::pair{kSoftcap, "softcap"},
                                  {kAlibi, "alibi"},
                                  {kBias, "bias"},
                                  {kMaskTensor, "mask"},
                                  {kDropout, "dropout"},
                                  {kScaleFirst, "scale"}})
    if (options & bit) text += join(text.empty() ? "" : " ", name);
  return text.empty() ? "no option" : text;
}

Launch launch_of(const KernelKey& kernel, const Checked& ctas, int threads, int shared_bytes) {
  constexpr int64_t kMaxX = (int64_t{1} << 31) - 1, kMaxY = (1 << 16) - 1, kMax = kMaxX * kMaxY;
  const int64_t count = ctas.at_most(kMax + 1);
  if (count > kMax)
    refuse(join("q: this call has ", ctas, " tiles, more than ", kMax,
                ", the most of a CUDA grid; split it into calls over fewer sequences, heads or rows"));
  const int64_t x = std::min(count, kMaxX);
  const int64_t y = x == 0 ? 1 : (count + x - 1) / x;
  return {kernel, static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1, threads, shared_bytes};
}

}  // namespace cuflash::cuda
