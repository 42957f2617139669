// The files of kernels/, which the build embeds in the library (cmake/EmbedKernels.cmake).
#pragma once

#include <span>

namespace cuflash {

struct KernelHeader {
  const char* name;  // path in an #include: "tile/operand.h"
  const char* text;
};
std::span<const KernelHeader> kernel_headers();
// SHA-256 of all names and texts, in hex.
const char* kernel_headers_hash();

}  // namespace cuflash
