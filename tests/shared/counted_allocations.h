// Counts allocations, so that a test can show that a call makes none. It replaces operator new, so only one source file of a
// program may include it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

static thread_local int64_t allocations = 0;

// Not inlined: g++ would warn about the free() in an inlined delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// Sorts allocate their buffer with this one, which must match the operator delete below.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
