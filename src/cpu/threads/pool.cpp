#include "cpu/threads/pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <new>
#include <system_error>

namespace cuflash::cpu {
namespace {

// Long enough for the next pass, or the next call in a loop over layers, to find the workers awake (waking one costs
// microseconds, and more on a virtual machine), and short enough not to waste a core that has other work.
constexpr std::chrono::microseconds kAwake{50};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yield does not pause at all on most cores
#endif
}

// Returns false if the value did not change in that time.
bool spin_until_changed(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto give_up = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int spin = 0; spin < 32; ++spin, pause())
      if (value.load(std::memory_order_acquire) != old) return true;
  } while (std::chrono::steady_clock::now() < give_up);
  return false;
}

// Never destroyed: the workers sleep until the process ends, and a forked child cannot join the threads of its parent.
std::atomic<Pool*> the_pool = nullptr;

thread_local bool inside_job = false;

}  // namespace

Pool& Pool::instance() {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool) return *pool;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  static_cast<void>(registered);
  auto* fresh = new Pool;  // has no threads yet
  if (the_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *pool;
}

void Pool::grow(int64_t threads) {
  try {
    while (static_cast<int64_t>(workers_.size()) < threads) {
      Sleeper& fresh = workers_.emplace_back();
      try {
        fresh.thread = std::thread(&Pool::worker, this, std::ref(fresh), job_.load());
      } catch (...) {
        workers_.pop_back();
        throw;
      }
    }
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {}  // no more threads are available; the existing ones do the work
}

bool Pool::claim(int64_t* index) {
  Ticket ticket = ticket_.load(std::memory_order_acquire), next;
  do {
    if (ticket.next == ticket.size) return false;
    next = ticket, ++next.next;
  } while (!ticket_.compare_exchange_weak(ticket, next, std::memory_order_acq_rel));
  *index = ticket.next;
  return true;
}

void Pool::work() {
  bool first = true;
  for (int64_t index; claim(&index); first = false) {
    if (first) wake_helpers();
    body_(context_, index);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

// Wakes at most two workers, for indices that no spinning worker will take. Each of them wakes two more, so that system
// calls do not delay the work of the caller, and many threads are awake after a few steps.
void Pool::wake_helpers() {
  const Ticket ticket = ticket_.load(std::memory_order_relaxed);
  int wanted = std::min(ticket.size - ticket.next - spinning_.load(std::memory_order_relaxed), 2);
  for (auto worker = workers_.begin(); wanted > 0 && worker != workers_.end(); ++worker) wanted -= worker->wake();
}

void Pool::worker(Sleeper& self, uint32_t seen) {
  inside_job = true;
  for (;; work()) {
    spinning_.fetch_add(1, std::memory_order_relaxed);
    const bool changed = spin_until_changed(job_, seen);
    spinning_.fetch_sub(1, std::memory_order_relaxed);
    if (!changed) self.sleep(job_, seen);
    seen = job_.load(std::memory_order_acquire);
  }
}

void Pool::parallel_for(int64_t n, cuflash_parallel_body body, void* context) {
  std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
  if (n <= 1 || n > std::numeric_limits<uint16_t>::max() || inside_job || !lock.try_lock()) {
    for (int64_t i = 0; i < n; ++i) body(context, i);
    return;
  }
  grow(n - 1);
  inside_job = true;
  body_ = body, context_ = context;
  unfinished_.store(static_cast<uint32_t>(n), std::memory_order_relaxed);
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  ticket_.store({job, static_cast<uint16_t>(n), 0}, std::memory_order_release);
  job_.store(job);
  work();
  for (uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
    if (!spin_until_changed(unfinished_, left)) unfinished_.wait(left, std::memory_order_acquire);
  inside_job = false;
}

}  // namespace cuflash::cpu
