// The properties of a GPU architecture that kernels depend on. The number of SMs differs between boards of one
// architecture. Kernels depend on it only by choices between variants that are all in a pack (SplitReduction in plan.h,
// ForwardWork in config.h), so that one pack of compiled kernels serves every board.
#pragma once

#include <string>
#include <string_view>

namespace cuflash::cuda {

struct Arch {
  int major = 0, minor = 0;
  int shared_per_block = 0, shared_per_sm = 0;  // bytes that a CTA may opt in to, bytes of an SM
  int usual_sms = 128;                          // SMs of the largest board, for a plan without a device
  bool wgmma = false;                           // warpgroup products, TMA and setmaxnreg, as sm_90a has them
  const char* suffix = "";                      // "a": compiled for the instructions that only this architecture has

  int number() const { return 10 * major + minor; }
};

// "sm_80", "sm_90a", "sm_120": from a table, no GPU needed. Throws for names that are not in it.
Arch arch_named(std::string_view name);
// The architecture of a device's compute capability. Throws below 8.0.
Arch arch_of(int major, int minor);
// The compiler's name for an architecture: "sm_90a" for 9.0, "sm_89" for 8.9.
std::string target_of(const Arch& arch);

}  // namespace cuflash::cuda
