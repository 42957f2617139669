// Whether a config can be compiled and run: the rules of the kernels, shared memory, registers. They are known before
// compiling, except for the exact number of registers.
#pragma once

#include "config.h"
#include "cuda/driver/arch.h"

namespace cuflash::cuda {

// crowded: the kernel runs, but with fewer CTAs per SM than its registers are budgeted for.
enum class Fault { none, crowded, shape, shared_memory, registers };

struct Limits {
  Fault fault = Fault::none;
  int shared_bytes = 0, max_shared_bytes = 0;  // per CTA: need, and limit
  int registers = 0, max_registers = 0;        // per thread: estimated need, and budget
};
constexpr bool is_legal(const Limits& limits) { return limits.fault == Fault::none || limits.fault == Fault::crowded; }

// Functions with which families compute their limits.

inline constexpr Limits kNoShape{Fault::shape, 0, 0, 0, 0};  // no kernel has this shape

// Registers that a kernel needs in addition to its sums to compile without spills: for addresses, counters and operands
// in flight.
inline constexpr int kOtherRegisters = 30;

// Registers per thread of a sum of rows x columns that `lanes` threads share.
int sum_registers(Element element, int rows, int columns, int lanes = 32);
// Registers that a thread may have if `ctas` CTAs of `threads` threads share an SM.
int registers_of(int threads, int ctas);

// Whether sizes of tiles and numbers of warps are legal. Only a few are, because no test covers kernels with others.
bool is_tile(int size);
bool are_warps(int count);
bool has_warps(int threads, int ctas_per_sm);

// The first of these faults that applies. shape: the config's shape is legal. ctas: per SM.
Limits limits_with(bool shape, int shared_bytes, int ctas, const Arch& arch, int registers, int max_registers);

// Used by the tuner. A kernel that just fits the registers of several CTAs per SM usually spills; one that leaves some
// registers free does not.
bool has_spare_registers(const Limits& limits);

}  // namespace cuflash::cuda
