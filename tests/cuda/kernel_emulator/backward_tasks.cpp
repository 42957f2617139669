// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "portable/backward_prepare.h"
#include "sm90/backward/key_task.h"
// clang-format on
#undef cuflash

#include <stdexcept>

#include "tests/cuda/kernel_emulator/backward_tasks.h"

namespace kernel_emulator {

void set_thread_number(unsigned x) { threadIdx.x = x; }

namespace {

using namespace host_kernels;

constexpr int kCtas = 132;

template <int kTileK>
std::vector<BackwardTask> tasks_of(const BackwardParams& p) {
  constexpr Sm90BackwardConfig kConfig{Element::bf16, 64, 64, 64, kTileK / 64, 2, 1, 0};
  constexpr BackwardConfig C = portable_view(kConfig);
  const bool deals = p.last_paired_task > 0;
  *p.ticket = deals ? 2 * kCtas : kCtas;
  if (p.key_tiles)
    for (int b = 0; b < p.attention.batch; ++b)
      run_threads(prepare_threads(C), static_cast<uint64_t>(b), [&] { list_key_tiles<C>(p, b); });
  std::vector<BackwardTask> tasks;
  KeyTask current{};
  for (int n = 0;; ++n) {
    KeyTask task;
    const bool dealt = deals && n < 2 * kCtas;
    if (n < kCtas) write_task<C>(task, p, n);
    else if (dealt) write_task<C>(task, p, p.last_paired_task - (n - kCtas));
    else write_next_task<C>(task, p, tasks.empty() ? nullptr : &current, false);
    if (task.written < 0 && !dealt) return tasks;
    if (task.written <= 0) continue;
    current = task;
    BackwardTask& t = tasks.emplace_back();
    t.b = task.b, t.head_k = task.head_k, t.part = task.part, t.first_key = task.k_first, t.rows = task.written;
    t.first_head = task.first_head, t.heads = task.group;
    for (int step = 0; step < task.visited.count(); ++step) {
      t.query_tiles.push_back(task.visited.tile(step));
      t.may_be_masked.push_back(step < task.visited.num_masked);
    }
  }
}

}  // namespace

std::vector<BackwardTask> backward_tasks(const void* params, int tile_k) {
  const auto& p = *static_cast<const BackwardParams*>(params);
  switch (tile_k) {
    case 64: return tasks_of<64>(p);
    case 128: return tasks_of<128>(p);
    case 192: return tasks_of<192>(p);
  }
  throw std::invalid_argument("no such tile");
}

}  // namespace kernel_emulator
