// kernels/ptx/wgmma.h on the host: nothing that runs here multiplies so.
#pragma once

#include "tile/operand.h"

namespace cuflash {

using Descriptor = unsigned long long;

}  // namespace cuflash
