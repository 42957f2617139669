// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_mask_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "ptx/cp_async.h"
#include "sm90/key_mask_tile.h"
#include "sm90/lists/mask_list.h"
// clang-format on
#undef cuflash

#include <cstring>

#include "tests/cuda/kernel_emulator/mask_lists.h"

namespace host_mask_kernels {
alignas(1024) unsigned char memory[1024];
}  // namespace host_mask_kernels

namespace kernel_emulator {

void set_thread_number(unsigned x) { threadIdx.x = x; }

namespace {

using namespace host_mask_kernels;

template <class Params = Sm90BackwardParams, class Kernel>
void run_lists(const void* params, int64_t lists, Kernel kernel) {
  constexpr int64_t kWarps = kMaskListThreads / 32;
  gridDim = {static_cast<unsigned>((lists + kWarps - 1) / kWarps), 1, 1};
  for (unsigned n = 0; n < gridDim.x; ++n) {
    blockIdx = {n, 0, 0};
    run_threads(kMaskListThreads, n, [&] { kernel(*static_cast<const Params*>(params)); });
  }
}

}  // namespace

void list_query_tiles(const void* params, int64_t lists) {
  constexpr Sm90BackwardConfig C{Element::bf16, 0, 0, 64, 2, 0, 0, 0};
  run_lists(params, lists, [](const Sm90BackwardParams& p) { sm90_backward_mask_list<C>(p); });
}
void list_key_tiles_for_dq(const void* params, int64_t lists) {
  constexpr Sm90DqConfig C{Element::bf16, 0, 0, 2, 64, 0, 0, 0, 0, 0};
  run_lists(params, lists, [](const Sm90BackwardParams& p) { sm90_dq_mask_list<C>(p); });
}
void list_key_tiles(const void* params, int64_t lists) {
  constexpr Sm90ForwardConfig C{Element::bf16, 0, 0, 3, 64, 0, 0, 0, 0};
  run_lists<Sm90ForwardParams>(params, lists, [](const Sm90ForwardParams& p) { sm90_mask_list<C>(p); });
}

void pairs_of_box(const unsigned char* box, bool has_rows, int half, bool keys_are_rows, unsigned (&pairs)[128]) {
  std::memcpy(memory, box, has_rows ? sizeof memory : 16);
  run_threads(128, 1, [&] {
    const int thread = static_cast<int>(threadIdx.x);
    const KeyMaskTile tile(0, 0, half * 64, has_rows);
    pairs[thread] = keys_are_rows ? tile.pairs_of_keys(thread) : tile.pairs_of_queries(thread);
  });
}

}  // namespace kernel_emulator
