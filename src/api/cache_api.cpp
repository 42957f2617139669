// The C ABI of the KV cache: converts structs to a Problem and exceptions to status codes.
#include <cuflash/cuflash_cache.h>

#include "api/calls.h"

using namespace cuflash;

cuflash_status cuflash_attend_cache(const cuflash_attention* attention, const cuflash_cache_tensors* cache,
                                    const cuflash_execution* execution) {
  return call(attention, cache, execution);
}
cuflash_status cuflash_attend_cache_workspace_size(const cuflash_attention* attention,
                                                   const cuflash_cache_tensors* cache,
                                                   const cuflash_execution* execution, size_t* bytes) {
  return query_size(attention, cache, execution, bytes);
}
cuflash_status cuflash_explain_attend_cache(const cuflash_attention* attention, const cuflash_cache_tensors* cache,
                                            const cuflash_execution* execution, char* text, size_t capacity,
                                            size_t* needed) {
  return write_explanation(attention, cache, execution, text, capacity, needed);
}

cuflash_status cuflash_merge_states(const cuflash_merge_tensors* tensors, const cuflash_execution* execution) {
  return guarded([&] {
    const Execution how = read(execution);
    const cuflash_merge_tensors where = read(tensors);
    const MergeProblem problem = describe(where, locate(where, how));
    backend_for(problem)(problem, how);
  });
}
