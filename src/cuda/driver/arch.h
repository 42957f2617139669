// A GPU architecture, as far as a plan depends on it: never on the number of multiprocessors, so that one pack of
// compiled kernels serves every board of an architecture.
#pragma once

#include <string>
#include <string_view>

namespace cuflash::cuda {

struct Arch {
  int major = 0, minor = 0;
  int shared_per_block = 0, shared_per_sm = 0;  // bytes a CTA may opt in to, bytes of a multiprocessor

  int number() const { return 10 * major + minor; }
};

// "sm_80", "sm_90a", "sm_120": from a table, no GPU needed. Throws for names that are not in it.
Arch arch_named(std::string_view name);
// Of a device's compute capability. Throws below 8.0.
Arch arch_of(int major, int minor);
// What the compiler is told: "sm_90a" for 9.0, "sm_89" for 8.9.
std::string target_of(const Arch& arch);

}  // namespace cuflash::cuda
