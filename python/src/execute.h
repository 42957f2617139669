// One call of the library, without the GIL, with scratch from where the caller wants it.
#pragma once

#include "arrays.h"
#include "call.h"
#include "raise.h"

namespace cuflash::python {

// What the frameworks say about their memory is believed: on the CPU no driver is asked where pointers point to.
inline cuflash_execution execution_of(const Arrays& arrays, const Place& place) {
  cuflash_execution e;
  cuflash_execution_init(&e);
  e.device = arrays.device().type == dlpack::kCuda ? CUFLASH_DEVICE_CUDA : CUFLASH_DEVICE_CPU;
  e.num_threads = place.num_threads, e.deterministic = place.deterministic, e.check_lengths = place.check_lengths;
  e.stream = reinterpret_cast<void*>(place.stream);
  e.workspace_from_pool = place.allocate.is_none();
  return e;
}

// What `allocate` returned, which must be memory of this size there.
Array workspace_of(nb::handle allocated, size_t bytes, const Place& place, dlpack::Device device);

// size and run are the library's functions of one pass, with its arguments.
template <class Attention, class Tensors>
void execute(const Arrays& arrays, const Place& place, const Attention& attention, const Tensors& tensors,
             cuflash_status (*size)(const Attention*, const Tensors*, const cuflash_execution*, size_t*),
             cuflash_status (*run)(const Attention*, const Tensors*, const cuflash_execution*), Wording wording) {
  cuflash_execution execution = execution_of(arrays, place);
  nb::object allocated;  // held until the call has launched what uses it: another thread may get it afterwards
  Array workspace;
  if (execution.device == CUFLASH_DEVICE_CUDA && !place.allocate.is_none()) {
    size_t bytes = 0;
    check(size(&attention, &tensors, &execution, &bytes), wording);
    if (bytes > 0) {
      allocated = nb::object(place.allocate(bytes));
      workspace = workspace_of(allocated, bytes, place, arrays.device());
      execution.workspace = workspace.data, execution.workspace_size = bytes;
    }
  }
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = run(&attention, &tensors, &execution);
  }
  check(status, wording);
}

template <class Attention, class Tensors>
std::string explain(const Arrays& arrays, const Place& place, const Attention& attention, const Tensors& tensors,
                    cuflash_status (*write)(const Attention*, const Tensors*, const cuflash_execution*, char*, size_t,
                                            size_t*),
                    Wording wording) {
  const cuflash_execution execution = execution_of(arrays, place);
  size_t needed = 0;
  check(write(&attention, &tensors, &execution, nullptr, 0, &needed), wording);
  std::string text(needed, '\0');
  check(write(&attention, &tensors, &execution, text.data(), needed, &needed), wording);
  text.resize(needed - 1);
  return text;
}

}  // namespace cuflash::python
