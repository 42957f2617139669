// The files of kernels/, embedded by the build (cmake/EmbedKernels.cmake).
#pragma once

#include <span>

namespace cuflash {

struct KernelHeader {
  const char* name;  // as it is included: "tile/operand.h"
  const char* text;
};
std::span<const KernelHeader> kernel_headers();
// SHA-256 of all names and texts, in hex.
const char* kernel_headers_hash();

}  // namespace cuflash
