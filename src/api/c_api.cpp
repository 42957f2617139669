// The C ABI: converts structs to a Problem and exceptions to status codes, and does nothing else.
#include <cuflash/cuflash.h>

#include "api/calls.h"

using namespace cuflash;

cuflash_status cuflash_forward(const cuflash_attention* attention, const cuflash_forward_outputs* outputs,
                               const cuflash_execution* execution) {
  return call(attention, outputs, execution);
}
cuflash_status cuflash_backward(const cuflash_attention* attention, const cuflash_backward_tensors* tensors,
                                const cuflash_execution* execution) {
  return call(attention, tensors, execution);
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
