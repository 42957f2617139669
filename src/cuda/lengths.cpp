#include "cuda/lengths.h"

#include "cuda/device.h"
#include "cuda/stream.h"

namespace cuflash::cuda {

HostLengths::HostLengths(const cuflash_attention& attention, Place place, void* stream) : attention_(attention) {
  const DeviceGuard guard(device(place.cuda_device));
  require_no_capture("check_lengths", stream);
  cuflash_tensor* const tensors[] = {&attention_.cu_seqlens_q, &attention_.cu_seqlens_k, &attention_.seqlens_q,
                                     &attention_.seqlens_k};
  for (size_t n = 0; n < values_.size(); ++n) {
    cuflash_tensor& t = *tensors[n];
    if (t.rank == 0 || t.shape[0] == 0) continue;
    values_[n].resize(static_cast<size_t>(t.shape[0]));
    copy_to_host(values_[n].data(), t.data, values_[n].size() * sizeof(int32_t), stream);
    t.data = values_[n].data();
  }
  synchronize(stream);
}

}  // namespace cuflash::cuda
