// Shared by the functions of the C ABI: read the structs, locate their memory, describe the problem, run it, and
// convert exceptions to status codes.
#pragma once

#include <cuflash/cuflash.h>
#include <cuflash/cuflash_cache.h>

#include <cstddef>
#include <cstdio>

#include "api/adopt.h"
#include "api/guard.h"
#include "backend/backend.h"
#include "backend/check_lengths.h"
#include "backend/locate.h"
#include "problem/describe.h"
#include "problem/describe_cache.h"
#include "problem/disjoint.h"
#include "support/environment.h"

namespace cuflash {

// The first published size of each struct. Only attention and execution have grown since.
inline cuflash_attention read(const cuflash_attention* a) {
  return adopt("attention", a, cuflash_attention_init, offsetof(cuflash_attention, mask_summary));
}
inline cuflash_forward_outputs read(const cuflash_forward_outputs* t) {
  return adopt("forward_outputs", t, cuflash_forward_outputs_init, sizeof *t);
}
inline cuflash_backward_tensors read(const cuflash_backward_tensors* t) {
  return adopt("backward_tensors", t, cuflash_backward_tensors_init, sizeof *t);
}

inline cuflash_cache_tensors read(const cuflash_cache_tensors* t) {
  return adopt("cache_tensors", t, cuflash_cache_tensors_init, sizeof *t);
}
inline cuflash_merge_tensors read(const cuflash_merge_tensors* t) {
  return adopt("merge_tensors", t, cuflash_merge_tensors_init, sizeof *t);
}
inline Execution read(const cuflash_execution* e) {
  environment();  // every call refuses an invalid setting, also one that it has no use for
  constexpr size_t kFirstSize = offsetof(cuflash_execution, workspace_from_pool);
  return e ? describe(adopt("execution", e, cuflash_execution_init, kFirstSize)) : Execution{};
}

template <class Tensors>
auto describe_checked(const cuflash_attention& what, const Tensors& where, const Execution& how, Memory memory,
                      Snapshot& copies) {
  const auto problem = describe(what, where, memory, copies);
  check_lengths(what, where, how, memory);
  return problem;
}

// The arguments of a C function: structs of this version, and the problem that they describe.
template <class Tensors>
struct Arguments {
  Arguments(const cuflash_attention* attention, const Tensors* tensors, const cuflash_execution* execution)
      : how(read(execution)),
        what(read(attention)),
        where(read(tensors)),
        problem(describe_checked(what, where, how, locate(what, where, how), copies)) {}

  const Execution how;
  const cuflash_attention what;
  const Tensors where;
  Snapshot copies;
  const decltype(describe(what, where, Memory(), copies)) problem;
};

// Has a handler of its own, so that few functions are on the stack of a launch (docs/design.md, A forward call).
template <class Tensors>
cuflash_status call(const cuflash_attention* attention, const Tensors* tensors,
                    const cuflash_execution* execution) noexcept try {
  const Arguments args(attention, tensors, execution);
  require_own_workspace(
      args.how, [&] { return workspace_size(args.problem, args.how); }, args.what, args.where);
  backend_for(args.problem)(args.problem, args.how);
  return CUFLASH_OK;
} catch (...) {
  return status_of_exception();
}

template <class Tensors>
cuflash_status query_size(const cuflash_attention* attention, const Tensors* tensors,
                          const cuflash_execution* execution, size_t* bytes) noexcept {
  return guarded([&] {
    const Arguments args(attention, tensors, execution);
    if (!bytes) reject("bytes: is NULL");
    *bytes = workspace_size(args.problem, args.how);
  });
}

// Locates the tensors for explain, where a missing device is part of the answer and not an error.
template <class Tensors>
std::string explain_even_without_device(const cuflash_attention& what, const Tensors& where, const Execution& how) {
  Snapshot copies;
  Memory memory;
  try {
    memory = locate(what, where, how);
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_NO_DEVICE) throw;
    return explain_none(describe(what, where, memory, copies), error.what());
  }
  return explain(describe_checked(what, where, how, memory, copies), how);
}

template <class Tensors>
cuflash_status write_explanation(const cuflash_attention* attention, const Tensors* tensors,
                                 const cuflash_execution* execution, char* text, size_t capacity,
                                 size_t* needed) noexcept {
  return guarded([&] {
    const Execution how = read(execution);
    const cuflash_attention what = read(attention);
    const Tensors where = read(tensors);
    if (!text && capacity != 0) reject("text: is NULL, but capacity is ", capacity);
    const std::string explanation = explain_even_without_device(what, where, how);
    if (capacity != 0) std::snprintf(text, capacity, "%s", explanation.c_str());
    if (needed) *needed = explanation.size() + 1;
  });
}

}  // namespace cuflash
