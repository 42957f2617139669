// Parameters of the kernel that summarizes a mask tensor.
#pragma once

#include "params.h"

namespace cuflash {

struct MaskSummaryParams {
  RowsView mask;
  MaskSummary summary;
  int heads, keys;
  int64 units;      // rows of blocks times spans, of all heads
  int64 low, high;  // query i needs the keys [i + low, i + high) at most: blocks beyond these are not read
};

}  // namespace cuflash
