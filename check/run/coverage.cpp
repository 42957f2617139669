#include "check/run/coverage.h"

#include "cuda/jit/kernel_cache.h"
#include "dtype.h"
#include "error.h"
#include "support/text.h"

namespace cuflash::check {

static std::string list(const std::map<std::string, uint64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += join(text.empty() ? "" : ", ", name, " ", count);
  return text;
}

void Coverage::add_problem(const Case& c) {
  count(name_of(c.dtype), true);
  count("causal", c.causal), count("window", c.window_left >= 0 || c.window_right >= 0);
  count("softcap", c.softcap > 0), count("ALiBi", c.alibi_rank > 0), count("sink", c.sink);
  count("grouped heads", c.heads_q > c.heads_k), count("packed", c.mode == Mode::packed);
  count("padded", c.mode == Mode::padded), count("NaN and Inf in what is hidden", c.garbage);
}

void Coverage::add(const Case& c) {
  add_problem(c);
  count("bias", c.bias.has_value()), count("mask", c.mask.has_value()), count("dropout", c.dropout_p > 0);
  count("backward", c.gradients.any()), count("deterministic backward", c.gradients.any() && c.deterministic);
  count("many sequences", c.batch > 4), count("dBias", c.gradients.dbias),
      count("stored as f32", c.dtype != DType::f32 && c.o_dtype == DType::f32);
}

void Coverage::add(const CacheCase& c) {
  add_problem(c.plain);
  count("pages", c.page_size > 0), count("new rows", c.new_rows != NewRows::none);
  count("rotary", c.rotary != Rotary::none), count("given splits", c.num_splits > 1);
  count("left padding", !c.leftpad.empty()), count("V in K", c.v_in_k), count("several queries", c.plain.len_q > 1);
  count("more than 64 queries", c.plain.len_q > 64);
}

void Coverage::add(const Coverage& other) {
  for (const auto& [trait, count] : other.counts_) counts_[trait] += count;
}

std::string Coverage::text() const { return list(counts_); }

std::string describe_loaded_kernels() {
  std::map<std::string, uint64_t> families;
  size_t loaded = 0, compiled = 0;
  double seconds = 0;
  for (const cuda::LoadedKernel& kernel : cuda::loaded_kernels()) {
    ++loaded, ++families[kernel.name.substr(0, kernel.name.find(':'))];
    if (kernel.origin == cuda::Origin::compiler) ++compiled, seconds += kernel.seconds;
  }
  return join(loaded, " kernels: ", list(families), "; ", compiled, " of them compiled in ", fixed(seconds, 1), " s");
}

}  // namespace cuflash::check
