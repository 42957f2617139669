// The only error path: library code throws, and the C API (src/api) converts exceptions to status codes.
#pragma once

#include <cuflash/flash_attention.h>

#include <sstream>
#include <string>

namespace cuflash {

template <class... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Reports an invalid argument. The message is one sentence: the argument, its value, what is allowed, and the way out.
template <class... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT, join(parts...));
}

}  // namespace cuflash
