// Host version of kernels/ptx/tma.h, for the tensor maps of the fake driver.
#pragma once

#include "params.h"
#include "ptx/cp_async.h"
#include "tests/cuda/fake_gpu/fake_cuda.h"

namespace cuflash {

using EvictionPolicy = unsigned long long;
inline EvictionPolicy evict_normal() { return 0; }
inline EvictionPolicy evict_first() { return 1; }
inline EvictionPolicy evict_first_sixteenth() { return 2; }

// The 128-byte swizzle: rows of 128 bytes, 16-byte pieces permuted by address bits.
inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch,
                     EvictionPolicy) {
  cuflash::test::FakeTensorMap tensor;
  std::memcpy(&tensor, &map, sizeof tensor);
  const unsigned lines = tensor.box_rows * tensor.box_heads;
  kernel_emulator::start_tma(barrier, lines * 128, [=] {
    for (unsigned r = 0; r < lines; ++r)
      for (unsigned n = 0; n < 64; ++n) {
        const uint64_t at[] = {column + uint64_t{n}, row + uint64_t{r % tensor.box_rows},
                               head + uint64_t{r / tensor.box_rows}, static_cast<uint64_t>(batch)};
        bool exists = true;
        for (int d = 0; d < 4; ++d) exists = exists && at[d] < tensor.extents[d];
        unsigned char* const line = memory + to + r * 128;
        unsigned char* const element = line + ((n / 8) ^ ((to / 128 + r) % 8)) * 16 + n % 8 * 2;
        const auto* from = static_cast<const unsigned char*>(tensor.address) + at[0] * 2;
        for (int d = 1; d < 4; ++d) from += at[d] * tensor.strides[d - 1];
        if (exists) std::memcpy(element, from, 2);
        else std::memset(element, 0, 2);
      }
  });
}

inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch) {
  tma_load(to, map, barrier, column, row, head, batch, evict_normal());
}

// No emulated kernel stores by TMA.
inline void tma_store(const TensorMap&, unsigned, int, int, int, int) { __trap(); }
inline void tma_store_commit() {}
inline void tma_store_wait_read() {}

inline void prefetch(const TensorMap&) {}

}  // namespace cuflash
