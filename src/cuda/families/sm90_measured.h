// Tiles of the sm90 families that `cuflash tune` measured for head sizes and sets of options; those of all other calls
// come from the tables of the families. tools/tile_tables.py writes them into sm90_measured_tables.h.
#pragma once

#include "config.h"

namespace cuflash::cuda {

struct MeasuredForward {
  int dim_qk, dim_v, options;  // padded; OptionBits, exactly those of the call
  bool causal;                 // causal or a window: a query does not see all later keys
  int warpgroups, tile_k, stages, schedule;
  double row_time;  // time per query, relative to the fastest tiles of the same calls
};

struct MeasuredBackward {
  int dim_qk, dim_v, options;
  int warpgroups, stages;
  int adds_dq;  // 0: a separate kernel computes dQ
};

}  // namespace cuflash::cuda
