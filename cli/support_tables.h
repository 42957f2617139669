// The tables of `cuflash support`.
#pragma once

#include "cli/table.h"

namespace cuflash::cli {

Table head_sizes(bool backward);
Table options_everywhere();
Table hopper_sizes();    // what its forward kernel takes
Table hopper_options();  // likewise

}  // namespace cuflash::cli
