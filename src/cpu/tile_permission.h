// The tile registers of AMX, which Linux gives to a process only when it asks for them.
//
// Asking has a price for the whole process: from then on every signal stack (sigaltstack) must have room for 8 KiB of
// tiles, and one of the common 8 KiB is refused. Where a thread has such a stack already, Linux refuses the tiles. So
// nothing asks before a kernel is about to use them.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "error.h"

namespace cuflash::cpu {

// arch_prctl of x86-64: 0, or -1 and errno.
using ArchPrctl = long (*)(long operation, uintptr_t argument);
inline constexpr long kGetSupportedFeatures = 0x1021, kRequestPermission = 0x1023;  // ARCH_*_XCOMP_* of asm/prctl.h
inline constexpr unsigned kTileData = 18;

// Whether this kernel knows tiles. Changes nothing.
inline bool offers_tiles(ArchPrctl arch_prctl) {
  uint64_t features = 0;
  return arch_prctl(kGetSupportedFeatures, reinterpret_cast<uintptr_t>(&features)) == 0 && (features >> kTileData & 1);
}

// Asks for them. "", or why they are refused.
inline std::string refusal_of_tiles(ArchPrctl arch_prctl) {
  if (arch_prctl(kRequestPermission, kTileData) == 0) return "";
  return errno == ENOSPC
             ? "a thread of this process has a signal stack (sigaltstack) that is too small for tile registers"
             : join("Linux refuses the tile registers: ", std::strerror(errno));
}

}  // namespace cuflash::cpu
