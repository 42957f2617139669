#include "cuda/driver/memory.h"

#include "cuda/driver/driver.h"

namespace cuflash::cuda {

MemoryLookup MemoryLookup::of_driver() { return MemoryLookup(&driver()); }

MemoryLookup MemoryLookup::of_process() {
  const Driver* d = loaded_driver();
  return MemoryLookup(d && d->cuPointerGetAttributes ? d : nullptr);
}

const MemoryLookup::Answer& MemoryLookup::ask(const void* data) {
  if (last_.covers(data)) return last_;
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUdeviceptr begin = 0;
  size_t size = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&type, &managed, &ordinal, &begin, &size};
  // The call fails if CUDA is not initialised yet; then there is no device memory. For an unknown pointer, the driver
  // leaves the answers as they are.
  const CUresult result = driver_->cuPointerGetAttributes(5, attributes, values, reinterpret_cast<CUdeviceptr>(data));
  const bool on_device = result == CUDA_SUCCESS && (type == CU_MEMORYTYPE_DEVICE || managed != 0) && ordinal >= 0;
  last_ = {Memory{on_device ? ordinal : -1}, on_device && managed != 0};
  if (on_device) last_.begin = begin, last_.size = size;
  return last_;
}

Memory MemoryLookup::of(const void* data) { return ask(data).memory; }

bool MemoryLookup::is_at(const void* data, Memory memory) {
  const Answer& answer = ask(data);
  return answer.managed || answer.memory == memory;
}

}  // namespace cuflash::cuda
