// Runs the threads of a CTA as coroutines of one host thread: each runs until it waits for others, at a barrier or in a
// warp-level instruction. The next runnable thread is chosen at random, which exposes missing barriers. CTAs run one
// after the other, or take turns if they wait for each other.
#pragma once

#include <cstdint>
#include <functional>

namespace kernel_emulator {

inline constexpr int kWarp = 32;

// Runs body() on every thread, with threadIdx set. seed: determines the order.
void run_threads(int threads, uint64_t seed, const std::function<void()>& body);
// Runs several CTAs that take turns. enter(n) is called before CTA n resumes, leave(n) after it paused or finished.
void run_ctas_interleaved(int64_t ctas, int threads, uint64_t seed, const std::function<void()>& body,
                          const std::function<void(int64_t)>& enter, const std::function<void(int64_t)>& leave);

// The functions below are called by body.
void sync_threads();  // __syncthreads
int num_threads();    // threads of the CTA
// Every lane of a warp passes `bytes` bytes and gets those of all lanes, in lane order.
const unsigned char* exchange(const void* mine, int bytes);

// Other threads of the CTA may run before the function returns.
void yield();
// A thread polls for another CTA; after some polls the next CTA has its turn.
void poll();

void sync_named(int number, int threads);                  // bar.sync
void arrive_named(int number, int threads);                // bar.arrive
bool sync_named_any(int number, int threads, bool value);  // bar.red

// mbarriers, by their address in shared memory. Boxes land only when a thread waits for them.
void init_mbarrier(unsigned barrier, int arrivals);
void arrive_mbarrier(unsigned barrier, unsigned announced_bytes);
void wait_mbarrier(unsigned barrier, unsigned parity);
void start_tma(unsigned barrier, unsigned bytes, std::function<void()> copy);

// cp.async of the running thread. Copies take effect only when they are waited for.
void start_cp_async(void* to, const void* from, int bytes, int zeros);
void commit_cp_async();
void wait_cp_async(int pending);

}  // namespace kernel_emulator
