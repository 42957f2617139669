// The module cuflash._core: the library's calls with their arguments by name. _core.pyi documents it.
#include <cuflash/cuflash.h>
#include <cuflash/flash_attention.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <sstream>
#include <tuple>

#include "call.h"
#include "machine/info.h"
#include "mask_summary.h"
#include "page_pool.h"
#include "raise.h"
#include "torch_calls.h"
#include "xla/xla_ffi.h"

namespace cuflash::python {
namespace {

// A parameter of a Python function: its name, and the member that receives its value and has its type.
template <class Struct, class Value>
struct Parameter {
  const char* name;
  Value Struct::*member;
};
template <class Struct, class Value>
struct DefaultParameter {  // the default is that of the member
  const char* name;
  Value Struct::*member;
};

// An entry of a list in options.h as a parameter. The struct is named by `using Struct` in each function.
#define CUFLASH_ARRAY(name, ...) Parameter{#name, &Struct::name},
#define CUFLASH_OPTION(type, name, value) Parameter{#name, &Struct::name},

constexpr auto forward_arrays() {
  using Struct = ForwardArrays;
  return std::tuple{CUFLASH_FORWARD_ARRAYS(CUFLASH_ARRAY)};
}

constexpr auto backward_arrays() {
  using Struct = BackwardArrays;
  return std::tuple{CUFLASH_BACKWARD_ARRAYS(CUFLASH_ARRAY)};
}

constexpr auto attention_options() {
  using Struct = Options;
  return std::tuple{
      CUFLASH_ATTENTION_ARRAYS(CUFLASH_ARRAY)                    //
      Parameter{"layout", &Struct::layout},                      //
      CUFLASH_ATTENTION_OPTIONS(CUFLASH_OPTION, CUFLASH_OPTION)  //
      Parameter{"stream", &Struct::stream},
      Parameter{"allocate", &Struct::allocate},
      DefaultParameter{"num_threads", &Struct::num_threads},
      DefaultParameter{"check_lengths", &Struct::check_lengths},
      DefaultParameter{"deterministic", &Struct::deterministic},
  };
}

constexpr auto cache_arrays() {
  using Struct = CacheArrays;
  return std::tuple{CUFLASH_CACHE_CALL_ARRAYS(CUFLASH_ARRAY) CUFLASH_CACHE_ARRAYS(CUFLASH_ARRAY, CUFLASH_ARRAY)};
}

constexpr auto cache_options() {
  using Struct = CacheOptions;
  return std::tuple{
      Parameter{"layout", &Struct::layout},                                  //
      CUFLASH_CACHE_OPTIONS(CUFLASH_OPTION, CUFLASH_OPTION, CUFLASH_OPTION)  //
      Parameter{"stream", &Struct::stream},
      Parameter{"allocate", &Struct::allocate},
      DefaultParameter{"num_threads", &Struct::num_threads},
      DefaultParameter{"check_lengths", &Struct::check_lengths},
  };
}

constexpr auto merge_arrays() {
  using Struct = MergeArrays;
  return std::tuple{CUFLASH_MERGE_ARRAYS(CUFLASH_ARRAY)};
}

constexpr auto merge_options() {
  using Struct = MergeOptions;
  return std::tuple{
      Parameter{"layout", &Struct::layout},
      Parameter{"stream", &Struct::stream},
      DefaultParameter{"num_threads", &Struct::num_threads},
  };
}

#undef CUFLASH_ARRAY
#undef CUFLASH_OPTION

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

// Defines a Python function of all arrays and options, in this order, that fills the two structs and makes the call.
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
    machine::write_info(text, {});
    return text.str();
  } catch (const FlashAttentionError& error) {  // about a setting in the environment
    raise_error(error.status(), error.what(), {""});
  }
}

}  // namespace
}  // namespace cuflash::python

NB_MODULE(_core, m) {
  using namespace cuflash::python;
  define(m, "forward", forward, forward_arrays(), attention_options());
  define(m, "backward", backward, backward_arrays(), attention_options());
  define(m, "explain_forward", explain_forward, forward_arrays(), attention_options());
  define(m, "explain_backward", explain_backward, backward_arrays(), attention_options());
  define(m, "attend_cache", attend_cache, cache_arrays(), cache_options());
  define(m, "explain_attend_cache", explain_attend_cache, cache_arrays(), cache_options());
  define(m, "merge_states", merge_states, merge_arrays(), merge_options());
  m.def(
      "summarize_mask",
      [](nb::handle mask, nb::handle words, uintptr_t stream, int32_t num_threads) {
        summarize_mask({mask, words, stream, num_threads});
      },
      nb::arg("mask"), nb::arg("words"), nb::arg("stream"), nb::arg("num_threads") = 0);
  m.def("summary_shape", summary_shape, nb::arg("batch"), nb::arg("heads"), nb::arg("rows"), nb::arg("keys"));
  m.def("version", cuflash_version);
  m.def("info", info);
  bind_page_pool(m);
  bind_torch_calls(m);
  bind_xla_ffi(m);
}
