// Arrays and options of a call over a KV cache -> the library's structs -> one call.
#include <cuflash/cuflash_cache.h>

#include "execute.h"

namespace cuflash::python {
namespace {

cuflash_attention attention_of(Arrays& arrays, const CacheArrays& a, const CacheOptions& o) {
  cuflash_attention t;
  cuflash_attention_init(&t);
  arrays.rows(t.q, a.q, "q");
  t.scale = o.scale.value_or(0), t.has_scale = o.scale.has_value();
#define CUFLASH_ASSIGN(type, name, value) t.name = o.name;
  CUFLASH_CACHE_OPTIONS(CUFLASH_NOTHING, CUFLASH_ASSIGN, CUFLASH_NOTHING)
#undef CUFLASH_ASSIGN
#define CUFLASH_INPUT(name, member) arrays.input(t.member, a.name, #name);
  CUFLASH_CACHE_ARRAYS(CUFLASH_NOTHING, CUFLASH_INPUT)
#undef CUFLASH_INPUT
  return t;
}

cuflash_cache_tensors tensors_of(Arrays& arrays, const CacheArrays& a, const CacheOptions& o) {
  cuflash_cache_tensors t;
  cuflash_cache_tensors_init(&t);
  const bool written = !a.k.is_none();
  arrays.cache(t.k, a.k_cache, "k_cache", written), arrays.cache(t.v, a.v_cache, "v_cache", written);
  arrays.rows(t.k_new, a.k, "k"), arrays.rows(t.v_new, a.v, "v");
#define CUFLASH_INPUT(name, member) arrays.input(t.member, a.name, #name);
  CUFLASH_CACHE_ARRAYS(CUFLASH_INPUT, CUFLASH_NOTHING)
#undef CUFLASH_INPUT
#define CUFLASH_ASSIGN(type, name, value) t.name = o.name;
  CUFLASH_CACHE_OPTIONS(CUFLASH_ASSIGN, CUFLASH_NOTHING, CUFLASH_NOTHING)
#undef CUFLASH_ASSIGN
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  return t;
}

}  // namespace

void attend_cache(const CacheArrays& a, const CacheOptions& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a, o);
  const cuflash_cache_tensors tensors = tensors_of(arrays, a, o);
  execute(arrays, o, attention, tensors, cuflash_attend_cache, {o.layout, Words::cache});
}

std::string explain_attend_cache(const CacheArrays& a, const CacheOptions& o) {
  Arrays arrays(o.layout, o.stream);
  const cuflash_attention attention = attention_of(arrays, a, o);
  const cuflash_cache_tensors tensors = tensors_of(arrays, a, o);
  return explain(arrays, o, attention, tensors, cuflash_explain_attend_cache, {o.layout, Words::cache});
}

void merge_states(const MergeArrays& a, const MergeOptions& o) {
  Arrays arrays(o.layout, o.stream);
  cuflash_merge_tensors t;
  cuflash_merge_tensors_init(&t);
  arrays.rows(t.o_a, a.o_a, "o_a"), arrays.input(t.lse_a, a.lse_a, "lse_a");
  arrays.rows(t.o_b, a.o_b, "o_b"), arrays.input(t.lse_b, a.lse_b, "lse_b");
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  const cuflash_execution execution = execution_of(arrays, o);
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = cuflash_merge_states(&t, &execution);
  }
  check(status, {o.layout});
}

}  // namespace cuflash::python
