// The memory of this process, to notice growth from problem to problem.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <string>

namespace cuflash::check {

struct MemoryUse {
  int64_t host = 0;    // resident bytes
  int64_t device = 0;  // bytes in use on the first GPU, by any process; 0 if the CPU is checked
};

// Makes freed memory return to the system from now on, so that resident memory shows leaks, not the size of past
// problems.
void return_freed_memory();

// Throws if the system does not tell.
MemoryUse memory_use(Device device);

// "" if neither has grown by more than `most` bytes, otherwise which one has, and by how much.
std::string growth_beyond(int64_t most, const MemoryUse& before, const MemoryUse& now);

}  // namespace cuflash::check
