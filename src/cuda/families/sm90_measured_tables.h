// Written by tools/tile_tables.py from docs/data/h200_tune_options.csv; do not edit.
//   cuflash tune --device cuda --heads 33 --len 3072 --head-dim 256,128,64 --option alibi dropout softcap mask
//   bias --seconds 22 --csv times.csv
//   NVIDIA H200, sm_90a, 132 multiprocessors
//   0.1.0, kernels bd82a68dbbbf2246, 2026-11-18
#pragma once

#include <array>

#include "cuda/families/sm90_measured.h"

namespace cuflash::cuda {

// clang-format off
inline constexpr std::array<MeasuredForward, 3> kMeasuredForward{{
    {256, 256, kAlibi, false, 2, 64, 2, kPinWait | kStoreBySmem | kFirstMax, 1.000},
    {128, 128, kAlibi, false, 3, 80, 2, kPingPong | kPinWait | kStoreBySmem | kPrefetchQ, 1.000},
    {128, 128, kAlibi, false, 2, 128, 2, kPinWait | kStoreBySmem | kPrefetchQ | kFirstMax, 1.048},
}};
inline constexpr std::array<MeasuredBackward, 0> kMeasuredBackward{{
}};
// clang-format on

}  // namespace cuflash::cuda
