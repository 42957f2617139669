#include "cpu/pool.h"

#include <pthread.h>

#include <new>
#include <system_error>

namespace cuflash::cpu {
namespace {

// Long enough that back-to-back calls find their workers awake (a futex wake costs microseconds), short enough not to
// burn a core that has other work.
constexpr int kSpins = 2000;

void wait_until_changed(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin)
    if (value.load(std::memory_order_acquire) != old) return;
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Never destroyed: its threads sleep until the process ends, and a forked child cannot join its parent's threads.
std::atomic<Pool*> the_pool = nullptr;

thread_local bool inside_job = false;

}  // namespace

Pool& Pool::instance() {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool) return *pool;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  static_cast<void>(registered);
  auto* fresh = new Pool;  // no thread of its own yet
  if (the_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *pool;
}

void Pool::grow(int64_t threads) {
  try {
    while (static_cast<int64_t>(threads_.size()) < threads)
      threads_.emplace_back(&Pool::worker, this, static_cast<int64_t>(threads_.size()), generation_.load());
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {}  // no more threads to be had: the ones that are there do the work
}

// Worker w takes indices w + 1, w + 1 + stride, ... : parallel_for is called with one long-running loop per index, so
// there is nothing to balance here.
void Pool::worker(int64_t index, uint32_t seen) {
  inside_job = true;
  for (;;) {
    wait_until_changed(generation_, seen);
    ++seen;
    const int64_t stride = static_cast<int64_t>(threads_.size()) + 1;
    for (int64_t i = index + 1; i < job_.n; i += stride) job_.body(job_.context, i);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void Pool::parallel_for(int64_t n, cuflash_parallel_body body, void* context) {
  std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
  if (n <= 1 || inside_job || !lock.try_lock()) {
    for (int64_t i = 0; i < n; ++i) body(context, i);
    return;
  }
  grow(n - 1);
  inside_job = true;
  job_ = {body, context, n};
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  const int64_t stride = static_cast<int64_t>(threads_.size()) + 1;
  for (int64_t i = 0; i < n; i += stride) body(context, i);
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_until_changed(running_, left);
  inside_job = false;
}

}  // namespace cuflash::cpu
