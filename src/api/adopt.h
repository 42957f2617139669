// Public structs carry their size. A program built against an older header passes a shorter struct; the fields it lacks
// keep their defaults. A program built against a newer header passes a longer one, which is accepted as long as the
// bytes this library does not know are zero.
#pragma once

#include <cstddef>
#include <cstring>

#include "error.h"

namespace cuflash {

// first_size: the size of the struct when it was first published.
template <class Struct>
Struct adopt(const char* name, const Struct* given, void (*init)(Struct*), size_t first_size) {
  if (!given) reject(name, ": is NULL");
  const size_t size = given->struct_size;
  if (size < first_size)
    reject(name, ": struct_size is ", size, ", must be at least ", first_size, "; call cuflash_", name, "_init first");
  // An uninitialised size must not make the loop below read arbitrary memory.
  constexpr size_t kNoStructIsLarger = 1 << 16;
  if (size > kNoStructIsLarger)
    reject(name, ": struct_size is ", size, ", which is not a size of this struct; call cuflash_", name, "_init first");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t n = sizeof(Struct); n < size; ++n)
    if (bytes[n] != 0)
      reject(name, ": struct_size is ", size, " and byte ", n, " is set, but this library (", cuflash_version(),
             ") knows only ", sizeof(Struct), " bytes of it; the program was built against a newer cuflash");
  Struct adopted;
  if (size >= sizeof(Struct)) {
    std::memcpy(&adopted, given, sizeof(Struct));
  } else {
    init(&adopted);
    std::memcpy(&adopted, given, size);
  }
  adopted.struct_size = sizeof(Struct);
  return adopted;
}

}  // namespace cuflash
