#include "cpu/threads/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "cpu/threads/pool.h"
#include "error.h"

namespace cuflash::cpu {
namespace {

constexpr int kMaxThreads = 1024;

int affinity_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::thread::hardware_concurrency());  // more cores than cpu_set_t holds
}

// The number of cores that the cgroup quota allows: "max 100000" or "150000 100000" in cgroup v2.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kMaxThreads;
  double microseconds = 0;
  const auto parsed = std::from_chars(quota.data(), quota.data() + quota.size(), microseconds);
  if (parsed.ec != std::errc()) return kMaxThreads;
  return std::clamp(static_cast<int>(std::ceil(microseconds / period)), 1, kMaxThreads);
}

int from_environment() {
  const char* value = std::getenv("CUFLASH_NUM_THREADS");
  const std::string_view text = value ? value : "";
  if (text.empty()) return 0;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 0 || threads > kMaxThreads)
    reject("CUFLASH_NUM_THREADS: is '", text, "', must be a whole number from 1 to ", kMaxThreads,
           ", or 0 for every core that this process may use");
  return threads;
}

struct Loop {
  Task task;
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next = 0;

  static void run(void* self, int64_t worker) {
    auto& loop = *static_cast<Loop*>(self);
    for (int64_t i; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.tasks;)
      loop.task(loop.context, worker, i);
  }
};

}  // namespace

int default_num_threads() {
  static const int threads = [] {
    if (const int asked = from_environment()) return asked;
    return std::max(1, std::min(affinity_cores(), quota_cores()));
  }();
  return threads;
}

int num_threads(const Execution& execution) {
  return execution.num_threads > 0 ? std::min(execution.num_threads, kMaxThreads) : default_num_threads();
}

void run_tasks(const Execution& execution, int64_t workers, int64_t tasks, Task task, void* context) {
  Loop loop{task, context, tasks};
  const int64_t loops = std::min(workers, tasks);
  if (execution.parallel_for && loops > 0)
    execution.parallel_for(execution.parallel_for_context, loops, Loop::run, &loop);
  else Pool::instance().parallel_for(loops, Loop::run, &loop);
}

}  // namespace cuflash::cpu
