// Whether a config can be compiled and run: the rules of the kernels, shared memory, registers. All of this is known
// before compiling, except for what only the compiler can tell.
#pragma once

#include "config.h"
#include "cuda/driver/arch.h"

namespace cuflash::cuda {

// crowded: it runs, but not with as many CTAs per SM as its registers are budgeted for.
enum class Fault { none, crowded, shape, shared_memory, registers };

struct Limits {
  Fault fault = Fault::none;
  int shared_bytes = 0, max_shared_bytes = 0;  // per CTA
  int registers = 0, max_registers = 0;        // per thread: an estimate of the need, and the budget
};
constexpr bool is_legal(const Limits& limits) { return limits.fault == Fault::none || limits.fault == Fault::crowded; }

// What families compute their limits with.

inline constexpr Limits kNoShape{Fault::shape, 0, 0, 0, 0};  // no kernel has this shape

// Addresses, counters, operands in flight: registers that kernels need beside their sums if they just compile without
// spills.
inline constexpr int kOtherRegisters = 30;

// Registers per thread of a sum of rows x columns that `lanes` threads share.
int sum_registers(Element element, int rows, int columns, int lanes = 32);
// Registers that a thread may have if `ctas` CTAs of `threads` threads share an SM.
int registers_of(int threads, int ctas);

// Tiles and warps of a few sizes. Others would be kernels that nothing has tested.
bool is_tile(int size);
bool are_warps(int count);
bool has_warps(int threads, int ctas_per_sm);

// The first of these faults that applies. shape: the config's shape is legal. ctas: per SM.
Limits limits_with(bool shape, int shared_bytes, int ctas, const Arch& arch, int registers, int max_registers);

// For the tuner: a kernel that just fits the registers of several CTAs per SM usually spills; one that has some left
// does not.
bool has_spare_registers(const Limits& limits);

}  // namespace cuflash::cuda
