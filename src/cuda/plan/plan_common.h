// Functions that plans of several families share.
#pragma once

#include <string>

#include "cuda/driver/rows.h"
#include "cuda/plan/head_sizes.h"
#include "cuda/plan/plan.h"
#include "error.h"

namespace cuflash::cuda {

// Positions within a sequence are ints on the device, and a tile may reach beyond its end.
inline constexpr int64_t kLongestSequence = (int64_t{1} << 31) - 1024;

// Throws CUFLASH_UNSUPPORTED.
[[noreturn]] void refuse(const std::string& sentence);

// Throws CUFLASH_UNSUPPORTED, with a sentence, for what no family computes.
void require_supported(const ForwardProblem& problem);
void require_supported(const BackwardProblem& problem);
void require_supported(const CacheProblem& problem);

// Whether scores are multiplied by the scale before anything else: a factor that is not a positive normal float cannot
// be folded into the exponent next to masked scores of -inf.
inline bool must_scale_first(const Problem& problem) { return problem.scale < 1e-30; }

// Dot products times this are the arguments of tanh for softcap (kernels/attn/softcap.h). 0: there is no softcap, or
// the factor would not be a normal float with some room, and kernels divide.
float tanh_argument(const Problem& problem);

// Exactly the options of the problem. Kernels of sm_90a are compiled for them.
int problem_options(const Problem& problem);
// The options of a portable kernel: none, exactly one, or all of them, since it is compiled for every architecture,
// element type and copy mode, and every set of options would multiply their number. Kernels that copy rows element by
// element get all options, because they need not be fast.
int portable_options(const Problem& problem, CopyMode copy);

// The load on registers in addition to a kernel's sums. A table of tiles says up to which load a tile compiles without
// spills.
enum class Load {
  whole_rows,    // no load: rows have exactly the padded size
  partial_rows,  // checks of the end of a row
  one_option,    // an option that changes scores or weights
  every_option,  // all options, or anything that costs as much
};

// How rows are copied to shared memory. vectors: all of them can be copied in vectors.
inline CopyMode copy_mode(const Problem& p, bool vectors) {
  if (!vectors) return kCopyElements;
  // Larger rows of 16 bits issue so many copies at once that checking the length of each costs nothing: measured.
  const int64_t largest = p.dtype == DType::f32 ? 256 : 128;
  const auto whole = [=](int64_t dim) { return dim == padded_head_size(dim) && dim <= largest; };
  return whole(p.dim_qk) && whole(p.dim_v) ? kCopyWhole : kCopyVectors;
}

// The options of a kernel, for explain: "softcap alibi".
std::string options_text(int options);
// The line of explain for a config of the portable forward and backward kernels.
template <class Config>
std::string portable_config_line(const Config& c) {
  return join("config     tiles of ", c.tile_q, " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk, " and ",
              c.dim_v, ", ", c.stages, " stages, ", c.ctas_per_sm, " CTAs per SM, rows copied ",
              c.copy == kCopyElements ? "an element" : "16 bytes", " at a time, ", options_text(c.options), "\n");
}

}  // namespace cuflash::cuda
