// The one error path: throw here, a status code at the C edge (src/api).
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

// A rule about an argument is broken. The sentence names the argument, what it got, what is allowed, the way out.
template <class... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT, join(parts...));
}

}  // namespace cuflash
