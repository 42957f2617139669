#pragma once

#include <unistd.h>

#include <cstdint>

namespace cuflash {

// Bytes of memory that this machine has.
inline int64_t physical_memory() { return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE); }

}  // namespace cuflash
