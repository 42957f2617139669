// What a call does on a stream beside launching kernels. The device of the stream is the current one: see DeviceGuard.
#pragma once

#include <cstddef>

namespace cuflash::cuda {

// What waits for the stream cannot be part of a graph: `argument` asked for it, and is refused.
void require_no_capture(const char* argument, void* stream);

void zero(void* device_memory, size_t bytes, void* stream);
void copy_to_host(void* host, const void* device_memory, size_t bytes, void* stream);
void synchronize(void* stream);

}  // namespace cuflash::cuda
