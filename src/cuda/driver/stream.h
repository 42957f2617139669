// Operations of a call on its stream other than launches. The device of the stream is current: see DeviceGuard.
#pragma once

#include <cstddef>

namespace cuflash::cuda {

// Throws if the stream is being captured: waiting for it, which `argument` requires, cannot be part of a graph.
void require_no_capture(const char* argument, void* stream);

void zero(void* device_memory, size_t bytes, void* stream);
void copy_to_host(void* host, const void* device_memory, size_t bytes, void* stream);
void synchronize(void* stream);

}  // namespace cuflash::cuda
