// The one place that compiles: a program becomes machine code for one architecture. Needs NVRTC, and no GPU.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/program.h"

namespace cuflash::cuda {

struct Compiled {
  std::string cubin;
  std::string log;  // warnings, and ptxas' report of what the kernel uses
};
// Throws CUFLASH_NO_DEVICE without a compiler or where it does not know the target, CUFLASH_INTERNAL, with the
// compiler's words, where the program is not accepted.
Compiled compile(const Program& program);

// What the compiler is told beside the source.
std::vector<std::string> compile_flags(const Arch& arch);

// ptxas' report, read from a log.
struct KernelUse {
  int registers = -1, static_shared = 0, stack = -1;  // -1: the log does not say
  int spill_stores = -1, spill_loads = -1;            // bytes
  std::vector<std::string> warnings;                  // lines with "warning" or "Potential Performance Loss"
};
KernelUse read_use(const std::string& log);

}  // namespace cuflash::cuda
