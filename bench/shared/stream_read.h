#pragma once

#include <cstddef>

// Seconds from the first read to the last by `threads` threads, each with an equal share of the bytes.
extern "C" __attribute__((visibility("default"))) double stream_read_seconds(const void* data, size_t bytes,
                                                                             int threads);
