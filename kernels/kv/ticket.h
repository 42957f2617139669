// Who of several CTAs comes last, without memory that somebody has to clear before.
//
// A ticket is a word of the workspace: 48 bits that say "this is a ticket of this address", and a count of 16 bits. Every
// CTA looks at it when it starts, and replaces what is no ticket by one with a count of 0; who finds that another CTA was
// faster leaves it at that. Every CTA counts itself when it is done, and the last one sets the count back to 0, for the
// next launch, which then finds a ticket. Words that were anything else are told from a ticket by the 48 bits; of a ticket
// no count but 0 is ever left behind by a kernel that has ended.
#pragma once

#include "kv_params.h"
#include "philox.h"
#if defined(__CUDACC__)
#include "ptx/global.h"
#endif

namespace cuflash {

constexpr uint64 kTicketCount = 0xffff;
constexpr int kMostSplits = 4096;  // that a ticket counts, with room to spare

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
// By one thread of every CTA, before it arrives.
__device__ __forceinline__ void prepare_ticket(uint64* ticket) {
  const uint64 empty = empty_ticket(reinterpret_cast<uint64>(ticket)), word = load_relaxed(ticket);
  if (!is_ticket(word, empty)) compare_and_swap(ticket, word, empty);
}
// By one thread, after a barrier behind that and behind all that the CTA has written. Whether this was the last of them: it
// then sees what all others have written, and sets the ticket back when it has the time.
__device__ __forceinline__ bool arrive(uint64* ticket, int arrivals) {
  return is_last(add_acquire_release(ticket, 1), arrivals);
}
__device__ __forceinline__ void reset(uint64* ticket) {
  store_relaxed(ticket, empty_ticket(reinterpret_cast<uint64>(ticket)));
}
#endif

}  // namespace cuflash
