// Arrival counter of the splits of a row tile: tells the last CTA that it is the last, without a memset before the
// launch.
//
// A ticket is a word of the workspace: a 48-bit tag derived from its address, and a 16-bit count. Every CTA checks the
// word in its prologue and, if the tag is missing, replaces it by a ticket with a count of 0 (compare and swap, so the
// fastest CTA wins). Every CTA adds 1 when its partial is stored. The last one resets the count to 0 for the next
// launch, which then finds a valid ticket. The tag distinguishes a ticket from old contents of the word, and a kernel
// that has ended always leaves a count of 0.
#pragma once

#include "kv_params.h"
#include "philox.h"
#if defined(__CUDACC__)
#include "ptx/global.h"
#endif

namespace cuflash {

constexpr uint64 kTicketCount = 0xffff;
constexpr int kMaxSplits = 4096;  // fits into the count with room to spare

CUFLASH_SHARED_FUNCTION uint64 empty_ticket(uint64 address) {
  uint64 x = address * 0x9E3779B97F4A7C15ull ^ 0xC0FFEE5EED5EA75Cull;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
  return (x ^ (x >> 29)) & ~kTicketCount;
}
CUFLASH_SHARED_FUNCTION bool is_ticket(uint64 word, uint64 empty) { return (word & ~kTicketCount) == empty; }
CUFLASH_SHARED_FUNCTION bool is_last(uint64 before, int arrivals) {
  return static_cast<int>(before & kTicketCount) + 1 == arrivals;
}

#if defined(__CUDACC__)
// Called by one thread of every CTA before the CTA arrives.
__device__ __forceinline__ void prepare_ticket(uint64* ticket) {
  const uint64 empty = empty_ticket(reinterpret_cast<uint64>(ticket)), word = load_relaxed(ticket);
  if (!is_ticket(word, empty)) compare_and_swap(ticket, word, empty);
}
// Called by one thread, after a barrier that follows prepare_ticket and all stores of the CTA. Returns whether this CTA
// is the last: it then sees the stores of all others, and resets the ticket later.
__device__ __forceinline__ bool arrive(uint64* ticket, int arrivals) {
  return is_last(add_acquire_release(ticket, 1), arrivals);
}
__device__ __forceinline__ void reset(uint64* ticket) {
  store_relaxed(ticket, empty_ticket(reinterpret_cast<uint64>(ticket)));
}
#endif

}  // namespace cuflash
