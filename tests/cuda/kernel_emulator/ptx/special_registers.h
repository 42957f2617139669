// kernels/ptx/special_registers.h on the host.
#pragma once

namespace cuflash {

inline int new_thread_id() { return static_cast<int>(threadIdx.x); }
inline void read_cta_index(unsigned& cta, unsigned& ctas) { cta = blockIdx.x, ctas = gridDim.x; }
inline long long cta_number() { return blockIdx.x + static_cast<long long>(gridDim.x) * blockIdx.y; }
inline long long num_ctas() { return static_cast<long long>(gridDim.x) * gridDim.y; }

}  // namespace cuflash
