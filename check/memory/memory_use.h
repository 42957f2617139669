// How much memory this process has, so that what grows from problem to problem is noticed.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <string>

namespace cuflash::check {

struct MemoryUse {
  int64_t host = 0;    // bytes that are resident
  int64_t device = 0;  // bytes of the first GPU that are in use, by whomever; 0 where the CPU is checked
};

// From now on the system gets back what is freed: what is resident then says what was lost, not how large problems were.
void return_freed_memory();

// Throws where the system does not say.
MemoryUse memory_use(Device device);

// "" where neither has grown by more than `most` bytes, otherwise which has and by how much.
std::string growth_beyond(int64_t most, const MemoryUse& before, const MemoryUse& now);

}  // namespace cuflash::check
