// The tables of `cuflash support`.
#pragma once

#include "cli/terminal/table.h"

namespace cuflash::cli {

Table head_sizes(bool backward);
Table options_everywhere();
Table hopper_sizes();    // head sizes of the forward kernel for Hopper
Table hopper_options();  // options of the forward kernel for Hopper

// Tables of attention over a KV cache.
Table cache_sizes();
Table cache_head_pairs();  // D and Dv different
Table cache_rows();        // tiles by the number of heads that share keys
Table cache_options();
Table cache_limits();

}  // namespace cuflash::cli
