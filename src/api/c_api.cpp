// The C ABI: structs become a Problem, exceptions become status codes. Nothing else happens here.
#include <cuflash/cuflash.h>

#include <cstddef>
#include <cstdio>

#include "api/adopt.h"
#include "api/guard.h"
#include "backend/backend.h"
#include "backend/check_lengths.h"
#include "backend/locate.h"
#include "problem/describe.h"

namespace cuflash {
namespace {

// The sizes of the first publication: execution has grown since.
cuflash_attention read(const cuflash_attention* a) { return adopt("attention", a, cuflash_attention_init, sizeof *a); }
cuflash_forward_outputs read(const cuflash_forward_outputs* t) {
  return adopt("forward_outputs", t, cuflash_forward_outputs_init, sizeof *t);
}
cuflash_backward_tensors read(const cuflash_backward_tensors* t) {
  return adopt("backward_tensors", t, cuflash_backward_tensors_init, sizeof *t);
}
Execution read(const cuflash_execution* e) {
  constexpr size_t kFirstSize = offsetof(cuflash_execution, workspace_from_pool);
  return e ? describe(adopt("execution", e, cuflash_execution_init, kFirstSize)) : Execution{};
}

template <class Tensors>
auto describe_checked(const cuflash_attention& what, const Tensors& where, const Execution& how, Place place) {
  const auto problem = describe(what, where, place);
  check_lengths(what, where, how, place);
  return problem;
}

template <class Tensors, class Use>
cuflash_status with_problem(const cuflash_attention* attention, const Tensors* tensors,
                            const cuflash_execution* execution, Use use) noexcept {
  return guarded([&] {
    const Execution how = read(execution);
    const cuflash_attention what = read(attention);
    const Tensors where = read(tensors);
    use(describe_checked(what, where, how, locate(what, where, how)), how);
  });
}

template <class Tensors>
cuflash_status query_size(const cuflash_attention* attention, const Tensors* tensors,
                          const cuflash_execution* execution, size_t* bytes) noexcept {
  return with_problem(attention, tensors, execution, [&](const auto& problem, const Execution& how) {
    if (!bytes) reject("bytes: is NULL");
    *bytes = workspace_size(problem, how);
  });
}

// A device that is not there is an answer here, not an error.
template <class Tensors>
std::string explain_where_it_can(const cuflash_attention& what, const Tensors& where, const Execution& how) {
  Place place;
  try {
    place = locate(what, where, how);
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_NO_DEVICE) throw;
    return explain_none(describe(what, where, place), error.what());
  }
  return explain(describe_checked(what, where, how, place), how);
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
    const std::string explanation = explain_where_it_can(what, where, how);
    if (capacity != 0) std::snprintf(text, capacity, "%s", explanation.c_str());
    if (needed) *needed = explanation.size() + 1;
  });
}

}  // namespace
}  // namespace cuflash

using namespace cuflash;

cuflash_status cuflash_forward(const cuflash_attention* attention, const cuflash_forward_outputs* outputs,
                               const cuflash_execution* execution) {
  return with_problem(attention, outputs, execution,
                      [](const auto& problem, const Execution& how) { run(problem, how); });
}
cuflash_status cuflash_backward(const cuflash_attention* attention, const cuflash_backward_tensors* tensors,
                                const cuflash_execution* execution) {
  return with_problem(attention, tensors, execution,
                      [](const auto& problem, const Execution& how) { run(problem, how); });
}

cuflash_status cuflash_forward_workspace_size(const cuflash_attention* attention,
                                              const cuflash_forward_outputs* outputs,
                                              const cuflash_execution* execution, size_t* bytes) {
  return query_size(attention, outputs, execution, bytes);
}
cuflash_status cuflash_backward_workspace_size(const cuflash_attention* attention,
                                               const cuflash_backward_tensors* tensors,
                                               const cuflash_execution* execution, size_t* bytes) {
  return query_size(attention, tensors, execution, bytes);
}

cuflash_status cuflash_explain_forward(const cuflash_attention* attention, const cuflash_forward_outputs* outputs,
                                       const cuflash_execution* execution, char* text, size_t capacity,
                                       size_t* needed) {
  return write_explanation(attention, outputs, execution, text, capacity, needed);
}
cuflash_status cuflash_explain_backward(const cuflash_attention* attention, const cuflash_backward_tensors* tensors,
                                        const cuflash_execution* execution, char* text, size_t capacity,
                                        size_t* needed) {
  return write_explanation(attention, tensors, execution, text, capacity, needed);
}

const char* cuflash_last_error(void) { return last_error(); }

const char* cuflash_status_name(cuflash_status status) {
  switch (status) {
    case CUFLASH_OK: return "ok";
    case CUFLASH_INVALID_ARGUMENT: return "invalid argument";
    case CUFLASH_UNSUPPORTED: return "unsupported";
    case CUFLASH_OUT_OF_MEMORY: return "out of memory";
    case CUFLASH_NO_DEVICE: return "no device";
    case CUFLASH_INTERNAL: return "internal error";
  }
  return "unknown status";
}

#define CUFLASH_TEXT_(x) #x
#define CUFLASH_TEXT(x) CUFLASH_TEXT_(x)
const char* cuflash_version(void) {
  return CUFLASH_TEXT(CUFLASH_VERSION_MAJOR) "." CUFLASH_TEXT(CUFLASH_VERSION_MINOR) "." CUFLASH_TEXT(
      CUFLASH_VERSION_PATCH);
}
