// Compiles a program to machine code for one architecture. Needs NVRTC, but no GPU.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/program.h"

namespace cuflash::cuda {

struct Compiled {
  std::string cubin;
  std::string log;  // warnings, and ptxas' report of what the kernel uses
};
// Throws CUFLASH_NO_DEVICE if there is no compiler or it does not know the target, and CUFLASH_INTERNAL, with the
// compiler's message, if it rejects the program.
Compiled compile(const Program& program);

// Options of the compiler.
std::vector<std::string> compile_flags(const Arch& arch);

// ptxas' report, read from a log.
struct KernelUse {
  int registers = -1, static_shared = 0, stack = -1;  // -1: the log does not say
  int spill_stores = -1, spill_loads = -1;            // bytes
  std::vector<std::string> warnings;                  // lines with "warning" or "Potential Performance Loss"
};
KernelUse read_use(const std::string& log);

}  // namespace cuflash::cuda
