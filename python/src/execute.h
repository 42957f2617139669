// One call of the library: releases the GIL and takes scratch memory from the caller's allocator.
#pragma once

#include <exception>

#include "arrays.h"
#include "call.h"
#include "raise.h"

namespace cuflash::python {

// The frameworks know where their memory is, so the device is always given: the library need not ask the driver.
inline cuflash_execution execution_of(const Arrays& arrays, const Runtime& runtime) {
  cuflash_execution e;
  cuflash_execution_init(&e);
  e.device = arrays.device().type == dlpack::kCuda ? CUFLASH_DEVICE_CUDA : CUFLASH_DEVICE_CPU;
  e.num_threads = runtime.num_threads, e.deterministic = runtime.deterministic, e.check_lengths = runtime.check_lengths;
  e.stream = reinterpret_cast<void*>(runtime.stream);
  e.workspace_from_pool = runtime.allocate.is_none();
  return e;
}

// Allocates by runtime.allocate; raises unless that returns this many bytes on the device.
Workspace allocate_by(const Runtime& runtime, size_t bytes, dlpack::Device device);

// The allocate_context of the library's calls.
struct Allocation {
  Allocate allocate;
  Workspace workspace{};  // held until the call has launched its kernels: another thread may get the memory afterwards
  std::exception_ptr failure{};
};

void* allocate_with_gil(void* allocation, size_t bytes);

// run is the library's function for one pass. allocate: NULL takes runtime.allocate.
template <class Attention, class Tensors>
void execute(const Arrays& arrays, const Runtime& runtime, const Attention& attention, const Tensors& tensors,
             cuflash_status (*run)(const Attention*, const Tensors*, const cuflash_execution*), Wording wording,
             const Allocate& allocate = nullptr) {
  cuflash_execution execution = execution_of(arrays, runtime);
  Allocation allocation{allocate ? allocate
                                 : [&](size_t bytes) { return allocate_by(runtime, bytes, arrays.device()); }};
  if (!execution.workspace_from_pool) execution.allocate = allocate_with_gil, execution.allocate_context = &allocation;
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = run(&attention, &tensors, &execution);
  }
  if (allocation.failure) std::rethrow_exception(allocation.failure);
  check(status, wording);
}

template <class Attention, class Tensors>
std::string explain(const Arrays& arrays, const Runtime& runtime, const Attention& attention, const Tensors& tensors,
                    cuflash_status (*write)(const Attention*, const Tensors*, const cuflash_execution*, char*, size_t,
                                            size_t*),
                    Wording wording) {
  const cuflash_execution execution = execution_of(arrays, runtime);
  size_t needed = 0;
  check(write(&attention, &tensors, &execution, nullptr, 0, &needed), wording);
  std::string text(needed, '\0');
  check(write(&attention, &tensors, &execution, text.data(), needed, &needed), wording);
  text.resize(needed - 1);
  return text;
}

}  // namespace cuflash::python
