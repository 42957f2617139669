// Which memory a pointer points to, according to the driver.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace cuflash::cuda {

struct Driver;

class MemoryLookup {
 public:
  // Loads the driver; throws CUFLASH_NO_DEVICE if there is none.
  static MemoryLookup of_driver();
  // A lookup for a process that may not use CUDA at all. It is false, at the cost of one comparison, if libcuda is not
  // loaded.
  static MemoryLookup of_process();

  explicit operator bool() const { return driver_ != nullptr; }

  // Device memory and managed memory are on a device; everything else is host memory.
  Memory of(const void* data);
  // Whether the pointer can be used in this memory: managed memory can be used everywhere.
  bool is_at(const void* data, Memory memory);

 private:
  explicit MemoryLookup(const Driver* driver) : driver_(driver) {}

  struct Answer {
    Memory memory;
    bool managed = false;
    uintptr_t begin = 0, size = 0;  // address range of the allocation

    bool covers(const void* data) const { return reinterpret_cast<uintptr_t>(data) - begin < size; }
  };
  const Answer& ask(const void* data);

  const Driver* driver_;
  Answer last_;  // the tensors of a call often share an allocation, and a lookup takes 0.1 us
};

}  // namespace cuflash::cuda
