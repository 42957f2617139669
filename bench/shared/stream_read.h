#pragma once

#include <cstddef>

// Seconds from the first read to the last, of `threads` threads with an equal share of the bytes each.
extern "C" __attribute__((visibility("default"))) double stream_read_seconds(const void* data, size_t bytes,
                                                                             int threads);
