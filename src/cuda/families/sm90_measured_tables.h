// Written by tools/tile_tables.py from docs/data/h200_tune_options.csv; do not edit.
//   nothing measured yet
//   NVIDIA H200, sm_90a, 132 multiprocessors
#pragma once

#include <array>

#include "cuda/families/sm90_measured.h"

namespace cuflash::cuda {

// clang-format off
inline constexpr std::array<MeasuredForward, 0> kMeasuredForward{{
}};
inline constexpr std::array<MeasuredBackward, 0> kMeasuredBackward{{
}};
// clang-format on

}  // namespace cuflash::cuda
