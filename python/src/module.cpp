// The module cuflash._core: the library's calls with their arguments by name. _core.pyi describes it to people.
#include <cuflash/cuflash.h>
#include <cuflash/flash_attention.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <sstream>
#include <tuple>

#include "call.h"
#include "machine/info.h"
#include "page_pool.h"
#include "raise.h"
#include "xla_ffi.h"

namespace cuflash::python {
namespace {

// A parameter of a Python function: its name, and where its value goes. The struct has its type.
template <class Struct, class Value>
struct Parameter {
  const char* name;
  Value Struct::*member;
};
template <class Struct, class Value>
struct DefaultParameter {  // the default is the struct's own
  const char* name;
  Value Struct::*member;
};

constexpr std::tuple kForwardArrays{
    Parameter{"q", &ForwardArrays::q},     Parameter{"k", &ForwardArrays::k},     Parameter{"v", &ForwardArrays::v},
    Parameter{"out", &ForwardArrays::out}, Parameter{"lse", &ForwardArrays::lse},
};

constexpr std::tuple kBackwardArrays{
    Parameter{"q", &BackwardArrays::q},         Parameter{"k", &BackwardArrays::k},
    Parameter{"v", &BackwardArrays::v},         Parameter{"out", &BackwardArrays::out},
    Parameter{"lse", &BackwardArrays::lse},     Parameter{"dout", &BackwardArrays::dout},
    Parameter{"dlse", &BackwardArrays::dlse},   Parameter{"dq", &BackwardArrays::dq},
    Parameter{"dk", &BackwardArrays::dk},       Parameter{"dv", &BackwardArrays::dv},
    Parameter{"dbias", &BackwardArrays::dbias}, Parameter{"dsink", &BackwardArrays::dsink},
};

constexpr std::tuple kOptions{
    Parameter{"alibi_slopes", &Options::alibi_slopes},
    Parameter{"bias", &Options::bias},
    Parameter{"mask", &Options::mask},
    Parameter{"sink", &Options::sink},
    Parameter{"cu_seqlens_q", &Options::cu_seqlens_q},
    Parameter{"cu_seqlens_k", &Options::cu_seqlens_k},
    Parameter{"seqlens_q", &Options::seqlens_q},
    Parameter{"seqlens_k", &Options::seqlens_k},
    Parameter{"layout", &Options::layout},
    Parameter{"scale", &Options::scale},
    Parameter{"causal", &Options::causal},
    Parameter{"top_left", &Options::top_left},
    Parameter{"window_left", &Options::window_left},
    Parameter{"window_right", &Options::window_right},
    Parameter{"softcap", &Options::softcap},
    Parameter{"dropout_p", &Options::dropout_p},
    Parameter{"dropout_seed", &Options::dropout_seed},
    Parameter{"dropout_offset", &Options::dropout_offset},
    Parameter{"max_seqlen_q", &Options::max_seqlen_q},
    Parameter{"max_seqlen_k", &Options::max_seqlen_k},
    Parameter{"stream", &Options::stream},
    Parameter{"allocate", &Options::allocate},
    DefaultParameter{"num_threads", &Options::num_threads},
    DefaultParameter{"check_lengths", &Options::check_lengths},
    DefaultParameter{"deterministic", &Options::deterministic},
};

constexpr std::tuple kCacheArrays{
    Parameter{"q", &CacheArrays::q},
    Parameter{"k_cache", &CacheArrays::k_cache},
    Parameter{"v_cache", &CacheArrays::v_cache},
    Parameter{"k", &CacheArrays::k},
    Parameter{"v", &CacheArrays::v},
    Parameter{"out", &CacheArrays::out},
    Parameter{"lse", &CacheArrays::lse},
    Parameter{"cache_seqlens", &CacheArrays::cache_seqlens},
    Parameter{"block_table", &CacheArrays::block_table},
    Parameter{"cache_batch_idx", &CacheArrays::cache_batch_idx},
    Parameter{"cache_leftpad", &CacheArrays::cache_leftpad},
    Parameter{"cu_seqlens_new", &CacheArrays::cu_seqlens_new},
    Parameter{"seqlens_new", &CacheArrays::seqlens_new},
    Parameter{"rotary_cos", &CacheArrays::rotary_cos},
    Parameter{"rotary_sin", &CacheArrays::rotary_sin},
    Parameter{"alibi_slopes", &CacheArrays::alibi_slopes},
    Parameter{"sink", &CacheArrays::sink},
    Parameter{"cu_seqlens_q", &CacheArrays::cu_seqlens_q},
    Parameter{"seqlens_q", &CacheArrays::seqlens_q},
};

constexpr std::tuple kCacheOptions{
    Parameter{"layout", &CacheOptions::layout},
    Parameter{"scale", &CacheOptions::scale},
    Parameter{"causal", &CacheOptions::causal},
    Parameter{"window_left", &CacheOptions::window_left},
    Parameter{"window_right", &CacheOptions::window_right},
    Parameter{"softcap", &CacheOptions::softcap},
    Parameter{"max_seqlen_q", &CacheOptions::max_seqlen_q},
    Parameter{"max_seqlen_new", &CacheOptions::max_seqlen_new},
    Parameter{"rotary_interleaved", &CacheOptions::rotary_interleaved},
    Parameter{"rotary_one_position", &CacheOptions::rotary_one_position},
    Parameter{"num_splits", &CacheOptions::num_splits},
    Parameter{"stream", &CacheOptions::stream},
    Parameter{"allocate", &CacheOptions::allocate},
    DefaultParameter{"num_threads", &CacheOptions::num_threads},
    DefaultParameter{"check_lengths", &CacheOptions::check_lengths},
};

constexpr std::tuple kMergeArrays{
    Parameter{"o_a", &MergeArrays::o_a}, Parameter{"lse_a", &MergeArrays::lse_a},
    Parameter{"o_b", &MergeArrays::o_b}, Parameter{"lse_b", &MergeArrays::lse_b},
    Parameter{"out", &MergeArrays::out}, Parameter{"lse", &MergeArrays::lse},
};

constexpr std::tuple kMergeOptions{
    Parameter{"layout", &MergeOptions::layout},
    Parameter{"stream", &MergeOptions::stream},
    DefaultParameter{"num_threads", &MergeOptions::num_threads},
};

template <class Struct, class Value>
Value type_of(Parameter<Struct, Value>);
template <class Struct, class Value>
Value type_of(DefaultParameter<Struct, Value>);

template <class Struct, class Value>
auto argument(Parameter<Struct, Value> p) {
  return nb::arg(p.name).none();
}
template <class Struct, class Value>
auto argument(DefaultParameter<Struct, Value> p) {
  return nb::arg(p.name) = Struct{}.*p.member;
}

// A Python function of all arrays and options, in this order, that fills the two structs and calls.
template <class Result, class CallArrays, class CallOptions, class... A, class... O>
void define(nb::module_& m, const char* name, Result (*call)(const CallArrays&, const CallOptions&),
            std::tuple<A...> arrays, std::tuple<O...> options) {
  const auto with = [&](A... a, O... o) {
    m.def(
        name,
        [=](decltype(type_of(a))... array, decltype(type_of(o))... option) {
          CallArrays all_arrays{};
          CallOptions all_options{};
          ((all_arrays.*a.member = array), ...);
          ((all_options.*o.member = option), ...);
          return call(all_arrays, all_options);
        },
        argument(a)..., argument(o)...);
  };
  std::apply(with, std::tuple_cat(arrays, options));
}

std::string info() {
  try {
    std::ostringstream text;
    cli::write_info(text, {});
    return text.str();
  } catch (const FlashAttentionError& error) {  // of a setting in the environment
    raise_error(error.status(), error.what(), {""});
  }
}

}  // namespace
}  // namespace cuflash::python

NB_MODULE(_core, m) {
  using namespace cuflash::python;
  define(m, "forward", forward, kForwardArrays, kOptions);
  define(m, "backward", backward, kBackwardArrays, kOptions);
  define(m, "explain_forward", explain_forward, kForwardArrays, kOptions);
  define(m, "explain_backward", explain_backward, kBackwardArrays, kOptions);
  define(m, "attend_cache", attend_cache, kCacheArrays, kCacheOptions);
  define(m, "explain_attend_cache", explain_attend_cache, kCacheArrays, kCacheOptions);
  define(m, "merge_states", merge_states, kMergeArrays, kMergeOptions);
  m.def("version", cuflash_version);
  m.def("info", info);
  bind_page_pool(m);
  bind_xla_ffi(m);
}
