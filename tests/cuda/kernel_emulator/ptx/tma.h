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

// Rows of 16-bit elements have 128 bytes in the 128-byte swizzle: 16-byte pieces are permuted by address bits. Bytes of a
// mask's bits, and row statistics of f32, are not swizzled.
inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch,
                     EvictionPolicy) {
  cuflash::test::FakeTensorMap tensor;
  std::memcpy(&tensor, &map, sizeof tensor);
  const unsigned lines = tensor.box_rows * tensor.box_heads, size = tensor.element_bytes,
                 row_bytes = tensor.box_columns * size;
  kernel_emulator::start_tma(barrier, lines * row_bytes, [=] {
    for (unsigned r = 0; r < lines; ++r)
      for (unsigned n = 0; n < tensor.box_columns; ++n) {
        const uint64_t at[] = {column + uint64_t{n}, row + uint64_t{r % tensor.box_rows},
                               head + uint64_t{r / tensor.box_rows}, static_cast<uint64_t>(batch)};
        bool exists = true;
        for (int d = 0; d < 4; ++d) exists = exists && at[d] < tensor.extents[d];
        // 16-byte pieces are permuted by XOR with address bits 7 to 9, or 7 and 8.
        const unsigned plain = to + r * row_bytes + n * size;
        const unsigned bits = tensor.swizzle_bytes == 0 ? 0 : tensor.swizzle_bytes == 128 ? 0x70 : 0x30;
        unsigned char* const element = memory + (plain ^ (plain >> 3 & bits));
        const auto* from = static_cast<const unsigned char*>(tensor.address) + at[0] * size;
        for (int d = 1; d < 4; ++d) from += at[d] * tensor.strides[d - 1];
        if (exists) std::memcpy(element, from, size);
        else std::memset(element, 0, size);
      }
  });
}

inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch) {
  tma_load(to, map, barrier, column, row, head, batch, evict_normal());
}

inline void tma_store(const TensorMap& map, unsigned from, int column, int row, int head, int batch) {
  cuflash::test::FakeTensorMap tensor;
  std::memcpy(&tensor, &map, sizeof tensor);
  for (unsigned r = 0; r < tensor.box_rows; ++r)
    for (unsigned n = 0; n < tensor.box_columns; ++n) {
      const uint64_t at[] = {column + uint64_t{n}, row + uint64_t{r}, static_cast<uint64_t>(head),
                             static_cast<uint64_t>(batch)};
      bool exists = true;
      for (int d = 0; d < 4; ++d) exists = exists && at[d] < tensor.extents[d];
      auto* to = static_cast<unsigned char*>(const_cast<void*>(tensor.address)) + at[0] * 2;
      for (int d = 1; d < 4; ++d) to += at[d] * tensor.strides[d - 1];
      const unsigned char* const line = memory + from + r * 128;
      if (exists) std::memcpy(to, line + ((n / 8) ^ ((from / 128 + r) % 8)) * 16 + n % 8 * 2, 2);
    }
}
inline void tma_store_commit() {}
inline void tma_store_wait_read() {}

inline void prefetch(const TensorMap&) {}

}  // namespace cuflash
