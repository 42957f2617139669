#include "cuda/memory_place.h"

#include "cuda/driver.h"

namespace cuflash::cuda {

MemoryPlaces MemoryPlaces::of_driver() { return MemoryPlaces(&driver()); }

MemoryPlaces MemoryPlaces::of_process() {
  const Driver* d = loaded_driver();
  return MemoryPlaces(d && d->cuPointerGetAttributes ? d : nullptr);
}

MemoryPlaces::Answer MemoryPlaces::ask(const void* data) const {
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  // Fails where nobody has initialised CUDA yet, and then nobody has device memory. Of a pointer that it does not know
  // it says nothing.
  const CUresult result = driver_->cuPointerGetAttributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(data));
  const bool on_device = result == CUDA_SUCCESS && (type == CU_MEMORYTYPE_DEVICE || managed != 0) && ordinal >= 0;
  return {Place{on_device ? ordinal : -1}, on_device && managed != 0};
}

Place MemoryPlaces::of(const void* data) const { return ask(data).place; }

bool MemoryPlaces::is_at(const void* data, Place place) const {
  const Answer answer = ask(data);
  return answer.managed || answer.place == place;
}

}  // namespace cuflash::cuda
