// The compiler's reports about kernels that tests/cuda/jit/cuda_kernels.txt records. A kernel whose sources, flags and
// compiler are those of its entry need not be compiled again to know its registers and spills.
#pragma once

#include <map>
#include <string>

#include "cuda/jit/program.h"

namespace cuflash::test {

struct KernelReport {
  std::string sources;  // digest_of its program
  int registers = 0, static_shared = 0;

  bool operator==(const KernelReport&) const = default;
};
using KernelRecord = std::map<std::string, KernelReport>;  // by the name of the program

// Digest of everything that the machine code depends on: the program, the kernel headers that it includes, directly or not,
// the flags, and the compiler's version. Lines with nothing but a comment do not count.
std::string digest_of(const cuda::Program& program, int compiler_version);

// An empty record if there is no such file. Throws if a line is malformed.
KernelRecord read_record(const std::string& path);
void write_record(const std::string& path, const KernelRecord& record);

}  // namespace cuflash::test
