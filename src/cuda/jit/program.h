// The program that a kernel is compiled from: four lines that name its header, its config and its entry.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cuda/jit/kernel_key.h"

namespace cuflash::cuda {

inline constexpr const char* kEntryName = "cuflash_kernel";

struct Program {
  std::string name;  // "forward:sm_90a:bf16,128,128,64,64,4,1,2,2,0,0": for messages, and for read_kernel_name
  Arch arch;
  std::string source;
};
Program program_of(const KernelKey& key);

std::string name_of(const KernelKey& key);
// The inverse of name_of for a kernel of one of these types. Throws, with the rule that the name breaks.
KernelKey read_kernel_name(std::string_view name, std::span<const KernelType* const> types);

}  // namespace cuflash::cuda
