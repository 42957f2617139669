// Sizes of the C ABI's structs when they were first published.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cuflash/cuflash.h"

namespace cuflash {

// A program of that time is still served.
template <class Struct>
constexpr size_t first_size() {
  if constexpr (std::is_same_v<Struct, cuflash_execution>) return offsetof(cuflash_execution, workspace_from_pool);
  if constexpr (std::is_same_v<Struct, cuflash_attention>) return offsetof(cuflash_attention, mask_summary);
  return sizeof(Struct);
}

}  // namespace cuflash
