#include "check/run/cache_run.h"

#include <exception>

#include "check/cases/cache_memory.h"
#include "check/cases/setup.h"
#include "check/memory/mirror.h"
#include "check/run/cache_alone.h"
#include "check/run/compare.h"
#include "check/run/run.h"
#include "check/run/tiles.h"
#include "dtype.h"
#include "error.h"
#include "reference/cache.h"
#include "reference/naive.h"
#include "reference/noise.h"

namespace cuflash::check {
namespace {

// On a GPU, heads are rows of a tile, unless the forward kernels attend the cache. They may if there are many queries.
std::string wrong_cache_statistics(const Case& c, const TileStats& stats) {
  constexpr int64_t kMany = 64;
  if (c.device == Device::cpu) return wrong_statistics(c, stats, Heads::apart);
  const std::string text = wrong_statistics(c, stats, Heads::packed);
  return text.empty() || c.len_q <= kMany ? text : wrong_statistics(c, stats, Heads::apart);
}

std::string attend_once(const Case& c, CacheMemory& memory, int threads, bool with_lse) {
  const Attention attention = memory.attention();
  const CacheTensors tensors = memory.tensors(with_lse);
  memory.start();
  // Tickets are read before any CTA has written one: initcheck would report a workspace of the pool.
  const Setup setup(c, threads, attention, tensors, elements_only());
  attend_cache(c.device, attention, tensors, setup.execution());
  if (const std::string text = memory.damage() + setup.damage(); !text.empty()) return text;
  if (const std::string text = memory.o.unwritten(); !text.empty()) return text;
  if (const std::string text = memory.lse.unwritten(); with_lse && !text.empty()) return text;
  return c.tile_stats ? wrong_cache_statistics(c, setup.stats()) : "";
}

void add(std::vector<double>& to, const std::vector<double>& more) {
  for (size_t n = 0; n < to.size(); ++n) to[n] += more[n];
}

std::string compare_outputs(const Case& c, const CacheMemory& memory) {
  const reference::PlainProblem plain(memory.attention(), memory.tensors(true));
  const reference::Forward expected = reference::oracle_forward(plain.attention());
  const reference::Forward naive = reference::naive_forward(plain.attention());
  reference::Forward noise = reference::forward_noise(plain.attention());
  const reference::Forward rotary = plain.rotary_noise();
  add(noise.o, rotary.o), add(noise.lse, rotary.lse);
  const std::string text = disagreement("o", Quantity::output, c.dtype, c.o_dtype, memory.o.read(), expected.o, naive.o,
                                        noise.o, has_correlated_errors(c));
  if (!text.empty()) return text;
  return disagreement("lse", Quantity::lse, c.dtype, state_type(c.dtype), memory.lse.read(), expected.lse, naive.lse,
                      noise.lse, has_correlated_errors(c));
}

std::string check(const CacheCase& c, CacheMemory& memory) {
  const Case& p = c.plain;
  if (const std::string text = attend_once(p, memory, p.threads, p.lse_asked); !text.empty()) return text;
  if (p.other_threads > 0 || !p.lse_asked || p.device == Device::cuda) {
    const auto bits = memory.results();
    const auto lse = memory.lse.bytes();
    const std::string text = attend_once(p, memory, p.other_threads > 0 ? p.other_threads : p.threads, true);
    if (!text.empty()) return "second run: " + text;
    if (bits != memory.results()) return "o or the cache of a second run has other bits";
    if (p.lse_asked && lse != memory.lse.bytes()) return "lse of a second run has other bits";
  }
  if (const std::string text = compare_outputs(p, memory); !text.empty()) return text;
  return c.alone >= 0 ? differs_alone(c, memory) : "";
}

}  // namespace

std::string run_cache_case(const CacheCase& c) {
  try {
    CacheMemory memory(c);
    return check(c, memory);
  } catch (const std::exception& error) {
    return join("a valid case was answered with: ", error.what());
  }
}

}  // namespace cuflash::check
