// The threads of one CTA as coroutines of one thread of the host: each runs until it waits for others, at a barrier or in
// an instruction of a whole warp. Which of those that can go on is next is random, so that code that lacks a barrier is
// found out. CTAs run one after the other, or take turns if they wait for each other.
#pragma once

#include <cstdint>
#include <functional>

namespace kernel_emulator {

inline constexpr int kWarp = 32;

// Runs body() on every one of the threads, with threadIdx set. seed: of the order.
void run_threads(int threads, uint64_t seed, const std::function<void()>& body);
// The same for several CTAs that take turns. enter(n), leave(n): before CTA n goes on, and when it has paused or is done.
void run_ctas_interleaved(int64_t ctas, int threads, uint64_t seed, const std::function<void()>& body,
                          const std::function<void(int64_t)>& enter, const std::function<void(int64_t)>& leave);

// Called by body.
void sync_threads();  // __syncthreads
// All lanes of a warp give `bytes` bytes, and each gets those of all of them, one after the other.
const unsigned char* exchange(const void* mine, int bytes);

// Somebody looks for what another CTA has to do: after some of that it is another one's turn.
void poll();

void sync_named(int number, int threads);                  // bar.sync
void arrive_named(int number, int threads);                // bar.arrive
bool sync_named_any(int number, int threads, bool value);  // bar.red

// mbarriers, by their address in shared memory. Boxes come when somebody waits for them, and not before.
void init_mbarrier(unsigned barrier, int arrivals);
void arrive_mbarrier(unsigned barrier, unsigned announced_bytes);
void wait_mbarrier(unsigned barrier, unsigned parity);
void start_tma(unsigned barrier, unsigned bytes, std::function<void()> copy);

// Of the thread that runs: copies that were started and not waited for. They are done when they are waited for, and not
// before.
void start_cp_async(void* to, const void* from, int bytes, int zeros);
void commit_cp_async();
void wait_cp_async(int pending);

}  // namespace kernel_emulator
