// The query tiles of a CTA of the forward kernel, as its producer warps see them one after the other: dealt out in
// advance (TileScheduler), or taken by ticket from a list (sm90/tile_list.h). One thread draws the tickets and passes
// them on through shared memory, one tile ahead, so that no warp waits for the atomic.
#pragma once

#include "ptx/grid.h"
#include "sm90/pipeline.h"
#include "sm90/visited_work.h"

namespace cuflash {

// kWholeWarp: all lanes of a warp use it together.
template <Sm90ForwardConfig C, bool kWholeWarp>
struct DealtTiles {
  TileScheduler scheduler;

  __device__ DealtTiles(const Sm90ForwardParams&, const Pipeline<C>&) {}
  __device__ unsigned round() const { return scheduler.round; }
  __device__ bool has_tile(const Sm90ForwardParams& p, const Pipeline<C>&) const {
    return scheduler.has_tile(p.tile_order);
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p) const { return scheduler.tile(p.tile_order); }
  __device__ void advance() { scheduler.advance(); }
};

// Tickets number the tiles of all heads: groups of heads one after the other, in a group the listed tiles in their
// order, of each listed tile the heads.
struct ListTickets {
  unsigned count, total;  // listed tiles, tickets

  // Waits for the kernel that made the list.
  __device__ explicit ListTickets(const Sm90ForwardParams& p) {
    griddepcontrol_wait();
    count = *p.list.count, total = count * static_cast<unsigned>(p.forward.attention.heads_q);
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p, unsigned ticket) const {
    const unsigned heads = static_cast<unsigned>(p.forward.attention.heads_q), most = p.list.heads_per_group;
    const unsigned first = ticket / (count * most) * most, width = min(most, heads - first);
    const unsigned rest = ticket - first * count, n = rest / width;
    const ListedTile listed = p.list.tiles[n];
    return {static_cast<unsigned>(listed.b) * heads + first + (rest - n * width), static_cast<unsigned>(listed.q_tile),
            true};
  }
};

template <Sm90ForwardConfig C, bool kWholeWarp>
struct TicketTiles {
  ListTickets tickets;
  unsigned ticket, number = 0;

  __device__ TicketTiles(const Sm90ForwardParams& p, const Pipeline<C>&) : tickets(p) {}
  __device__ unsigned round() const { return number; }
  // Called once per round.
  __device__ __forceinline__ bool has_tile(const Sm90ForwardParams&, const Pipeline<C>& pipeline) {
    mbarrier_wait(pipeline.ticket_full(number), number / kTicketStages % 2);
    ticket = pipeline.ticket(number);
    if constexpr (kWholeWarp) __syncwarp();
    if (!kWholeWarp || lane_id() == 0) mbarrier_arrive(pipeline.ticket_empty(number));
    return ticket < tickets.total;
  }
  __device__ __forceinline__ TileCoord tile(const Sm90ForwardParams& p) const { return tickets.tile(p, ticket); }
  __device__ void advance() { ++number; }
};

template <Sm90ForwardConfig C, bool kWholeWarp, bool = lists_tiles(C)>
struct ForwardTilesOf {
  using Type = DealtTiles<C, kWholeWarp>;
};
template <Sm90ForwardConfig C, bool kWholeWarp>
struct ForwardTilesOf<C, kWholeWarp, true> {
  using Type = TicketTiles<C, kWholeWarp>;
};
template <Sm90ForwardConfig C, bool kWholeWarp = false>
using ForwardTiles = typename ForwardTilesOf<C, kWholeWarp>::Type;

template <Sm90ForwardConfig C>
__device__ __forceinline__ VisitedWork<C> forward_work(const Sm90ForwardParams& p, const TileCoord& tile) {
  return VisitedWork<C>(p.forward.attention, p.mask_lists, tile, p.splits.splits);
}

// Called by one thread: passes tickets on, the last of which says that there are no more. on_tile(work) may wait for the
// consumers: the ticket after that tile is under way by then.
template <Sm90ForwardConfig C, class OnTile>
__device__ __forceinline__ void draw_tickets(const Sm90ForwardParams& p, const Pipeline<C>& pipeline,
                                             OnTile&& on_tile) {
  const ListTickets tickets(p);
  unsigned round = 0;
  const auto draw = [&] {
    const unsigned ticket = atomicAdd(p.list.next, 1u);
    mbarrier_wait(pipeline.ticket_empty(round), round / kTicketStages % 2 ^ 1);
    pipeline.ticket(round) = ticket;
    mbarrier_arrive(pipeline.ticket_full(round));
    ++round;
    return ticket;
  };
#pragma unroll 1
  for (unsigned ticket = draw(); ticket < tickets.total;) {
    const unsigned next = draw();
    on_tile(forward_work<C>(p, tickets.tile(p, ticket)));
    ticket = next;
  }
}

}  // namespace cuflash
