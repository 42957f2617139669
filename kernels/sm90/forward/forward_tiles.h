// The query tiles of a CTA of the forward kernel, in the order in which its producer warps see them: assigned statically
// (TileScheduler), or taken by ticket from a list (sm90/lists/tile_list.h). One thread draws the tickets and passes them
// on through shared memory. It draws the next ticket when the loads of a tile are nearly done: early enough that no warp
// waits for the atomic, and late enough that a CTA does not hold a tile which another CTA could start sooner.
#pragma once

#include "ptx/grid.h"
#include "sm90/forward/pipeline.h"
#include "sm90/visited_work.h"

namespace cuflash {

// Who reads the tiles: one lane, or all lanes of a warp together. With manual release, one lane calls release() when
// the next ticket may be drawn.
enum class TileReader { lane, warp, manual_release, warp_manual_release };

template <Sm90ForwardConfig C, TileReader kReader>
struct StaticTiles {
  TileScheduler scheduler;

  __device__ StaticTiles(const Sm90ForwardParams&, const Pipeline<C>&) {}
  __device__ unsigned round() const { return scheduler.round; }
  __device__ bool has_tile(const Sm90ForwardParams& p, const Pipeline<C>&) const {
    return scheduler.has_tile(p.tile_order);
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p) const { return scheduler.tile(p.tile_order); }
  __device__ void release(const Pipeline<C>&) const {}
  __device__ void advance() { scheduler.advance(); }
};

// Tickets number the tiles of all heads. They go through one group of heads after the other; within a group, through
// the listed tiles in order, each for all heads of the group.
struct ListTickets {
  unsigned count, total;  // listed tiles, tickets

  // Waits for the kernel that made the list.
  __device__ explicit ListTickets(const Sm90ForwardParams& p) {
    griddepcontrol_wait();
    count = *p.list.count, total = count * static_cast<unsigned>(p.forward.attention.heads_q);
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p, unsigned ticket) const {
    const unsigned heads = static_cast<unsigned>(p.forward.attention.heads_q), group = p.list.heads_per_group;
    const unsigned first = ticket / (count * group) * group, width = min(group, heads - first);
    const unsigned rest = ticket - first * count, n = rest / width;
    const ListedTile listed = p.list.tiles[n];
    return {static_cast<unsigned>(listed.b) * heads + first + (rest - n * width), static_cast<unsigned>(listed.q_tile),
            true};
  }
};

template <Sm90ForwardConfig C, TileReader kReader>
struct TicketTiles {
  ListTickets tickets;
  unsigned ticket, number = 0;

  __device__ TicketTiles(const Sm90ForwardParams& p, const Pipeline<C>&) : tickets(p) {}
  __device__ unsigned round() const { return number; }
  // Called once per round.
  __device__ __forceinline__ bool has_tile(const Sm90ForwardParams&, const Pipeline<C>& pipeline) {
    mbarrier_wait(pipeline.ticket_full(), number % 2);
    if constexpr (kReader == TileReader::warp || kReader == TileReader::warp_manual_release) {
      // Only the lane that releases the ticket reads it, so that racecheck can follow the hand-over (docs/lab/ci.md).
      unsigned read = 0;
      if (lane_id() == 0) {
        read = pipeline.ticket();
        if constexpr (kReader == TileReader::warp) release(pipeline);
      }
      ticket = __shfl_sync(0xffffffffu, read, 0);
    } else {
      ticket = pipeline.ticket();
      if constexpr (kReader == TileReader::lane) release(pipeline);
    }
    return ticket < tickets.total;
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p) const { return tickets.tile(p, ticket); }
  // Once per round.
  __device__ __forceinline__ void release(const Pipeline<C>& pipeline) const {
    mbarrier_arrive(pipeline.ticket_empty());
  }
  __device__ void advance() { ++number; }
};

template <Sm90ForwardConfig C, TileReader kReader, bool = lists_tiles(C)>
struct ForwardTilesOf {
  using Type = StaticTiles<C, kReader>;
};
template <Sm90ForwardConfig C, TileReader kReader>
struct ForwardTilesOf<C, kReader, true> {
  using Type = TicketTiles<C, kReader>;
};
template <Sm90ForwardConfig C, TileReader kReader = TileReader::lane>
using ForwardTiles = typename ForwardTilesOf<C, kReader>::Type;

template <Sm90ForwardConfig C>
__device__ __forceinline__ VisitedWork<C> forward_work(const Sm90ForwardParams& p, const TileCoord& tile) {
  return VisitedWork<C>(p.forward.attention, p.mask_lists, tile, p.splits.splits);
}

// Called by one thread: draws tickets and passes them on. The last ticket says that there are no more tiles.
// on_tile(work) may wait for the consumers.
template <Sm90ForwardConfig C, class OnTile>
__device__ __forceinline__ void draw_tickets(const Sm90ForwardParams& p, const Pipeline<C>& pipeline,
                                             OnTile&& on_tile) {
  const ListTickets tickets(p);
#pragma unroll 1
  for (unsigned round = 0;; ++round) {
    mbarrier_wait(pipeline.ticket_empty(), round % 2 ^ 1);
    const unsigned ticket = atomicAdd(p.list.next, 1u);
    pipeline.ticket() = ticket;
    mbarrier_arrive(pipeline.ticket_full());
    if (ticket >= tickets.total) break;
    on_tile(forward_work<C>(p, tickets.tile(p, ticket)));
  }
}

}  // namespace cuflash
