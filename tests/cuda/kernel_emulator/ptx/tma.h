// Host version of kernels/ptx/tma.h, for the tensor maps of the fake driver.
#pragma once

#include "params.h"
#include "ptx/cp_async.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"

namespace cuflash {

using EvictionPolicy = unsigned long long;
inline EvictionPolicy evict_normal() { return 0; }
inline EvictionPolicy evict_first() { return 1; }
inline EvictionPolicy evict_first_sixteenth() { return 2; }

// A box in shared memory. 16-byte pieces are permuted by XOR with address bits 7 to 9, or 7 and 8.
struct TmaBox {
  cuflash::test::FakeTensorMap tensor;
  unsigned shared;
  int column, row, head, batch;

  TmaBox(const TensorMap& map, unsigned shared, int column, int row, int head, int batch)
      : shared(shared), column(column), row(row), head(head), batch(batch) {
    std::memcpy(&tensor, &map, sizeof tensor);
    // A GPU reports an illegal instruction.
    if (column * static_cast<int>(tensor.element_bytes) % 16 != 0 || shared % 128 != 0) __trap();
  }
  unsigned lines() const { return tensor.box_rows * tensor.box_heads; }
  unsigned row_bytes() const { return tensor.box_columns * tensor.element_bytes; }
  // visit(element in shared memory, element of the tensor or null, their size)
  template <class Visit>
  void for_each(Visit&& visit) const {
    const unsigned size = tensor.element_bytes;
    const unsigned bits = tensor.swizzle_bytes == 0 ? 0 : tensor.swizzle_bytes == 128 ? 0x70 : 0x30;
    for (unsigned r = 0; r < lines(); ++r)
      for (unsigned n = 0; n < tensor.box_columns; ++n) {
        const uint64_t at[] = {column + uint64_t{n}, row + uint64_t{r % tensor.box_rows},
                               head + uint64_t{r / tensor.box_rows}, static_cast<uint64_t>(batch)};
        bool exists = true;
        for (int d = 0; d < 4; ++d) exists = exists && at[d] < tensor.extents[d];
        const unsigned plain = shared + r * row_bytes() + n * size;
        auto* element = static_cast<unsigned char*>(const_cast<void*>(tensor.address)) + at[0] * size;
        for (int d = 1; d < 4; ++d) element += at[d] * tensor.strides[d - 1];
        visit(memory + (plain ^ (plain >> 3 & bits)), exists ? element : nullptr, size);
      }
  }
};

inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch,
                     EvictionPolicy) {
  const TmaBox box(map, to, column, row, head, batch);
  kernel_emulator::start_tma(barrier, box.lines() * box.row_bytes(), [=] {
    box.for_each([](unsigned char* element, const unsigned char* from, unsigned size) {
      if (from) std::memcpy(element, from, size);
      else std::memset(element, 0, size);
    });
  });
}

inline void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch) {
  tma_load(to, map, barrier, column, row, head, batch, evict_normal());
}

// Has read shared memory at once, so that there is nothing to wait for.
inline void tma_store(const TensorMap& map, unsigned from, int column, int row, int head, int batch) {
  TmaBox(map, from, column, row, head, batch)
      .for_each([](const unsigned char* element, unsigned char* to, unsigned size) {
        if (to) std::memcpy(to, element, size);
      });
}
inline void tma_store_commit() {}
inline void tma_store_wait_read() {}

inline void prefetch(const TensorMap&) {}

}  // namespace cuflash
