#include "cuda/launch/lengths.h"

#include "cuda/driver/device.h"
#include "cuda/driver/stream.h"

namespace cuflash::cuda {

HostLengths::HostLengths(const cuflash_attention& attention, Memory memory, void* stream)
    : HostLengths(attention, cuflash_cache_tensors{}, memory, stream) {}

HostLengths::HostLengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, Memory memory,
                         void* stream)
    : attention_(attention), cache_(cache) {
  const DeviceGuard guard(device(memory.cuda_device));
  require_no_capture("check_lengths", stream);
  for (cuflash_tensor* t : {&attention_.cu_seqlens_q, &attention_.cu_seqlens_k, &attention_.seqlens_q,
                            &attention_.seqlens_k, &cache_.seqlens, &cache_.block_table, &cache_.batch_idx,
                            &cache_.leftpad, &cache_.cu_seqlens_new, &cache_.seqlens_new})
    copy(*t, stream);
  synchronize(stream);
}

// Copies everything from the first element to the last, including gaps of a table.
void HostLengths::copy(cuflash_tensor& t, void* stream) {
  int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) {
    if (t.shape[d] == 0) return;
    if (t.shape[d] > 1) last += (t.shape[d] - 1) * t.stride[d];
  }
  if (t.rank == 0) return;
  std::vector<int32_t>& values = values_.emplace_back(static_cast<size_t>(last + 1));
  copy_to_host(values.data(), t.data, values.size() * sizeof(int32_t), stream);
  t.data = values.data();
}

}  // namespace cuflash::cuda
