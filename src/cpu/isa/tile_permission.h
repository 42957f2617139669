// Permission to use the AMX tile registers, which Linux grants to a process on request.
//
// The request affects the whole process: afterwards every signal stack (sigaltstack) must have room for 8 KiB of tiles,
// and Linux refuses the common size of 8 KiB. If a thread already has such a stack, Linux refuses the request. So the
// library requests tiles only when a kernel is about to use them.
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

// Whether the Linux kernel supports tiles. Changes nothing.
inline bool offers_tiles(ArchPrctl arch_prctl) {
  uint64_t features = 0;
  return arch_prctl(kGetSupportedFeatures, reinterpret_cast<uintptr_t>(&features)) == 0 && (features >> kTileData & 1);
}

// Requests the tile registers. Returns "" if granted, otherwise the reason.
inline std::string refusal_of_tiles(ArchPrctl arch_prctl) {
  if (arch_prctl(kRequestPermission, kTileData) == 0) return "";
  return errno == ENOSPC
             ? "a thread of this process has a signal stack (sigaltstack) that is too small for tile registers"
             : join("Linux refuses the tile registers: ", std::strerror(errno));
}

}  // namespace cuflash::cpu
