// Counts allocations, so that a test can say that a call makes none. It replaces operator new: one source file of a
// program may include it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

static thread_local int64_t allocations = 0;

// Not inlined: g++ takes a free() that it sees in an inlined delete for a mistake.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// Of which a sort asks for its buffer, and which would otherwise come from elsewhere than what frees it.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
