#include "arrays.h"

#include <utility>

namespace cuflash::python {
namespace {

template <class Tensor>
void fill(Tensor& out, const Array& array, const char* name) {
  out.data = array.data;
  out.dtype = dtype_of(array, name);
  out.rank = array.rank;
  for (int d = 0; d < 4; ++d) out.shape[d] = array.shape[d], out.stride[d] = array.stride[d];
}

template <class Tensor>
void reorder(Tensor& out, std::string_view layout) {
  if (layout == "bshd" && out.rank == 4) std::swap(out.shape[1], out.shape[2]), std::swap(out.stride[1], out.stride[2]);
}

}  // namespace

std::string device_text(dlpack::Device device) {
  if (device.type == dlpack::kCpu) return "the CPU";
  if (device.type == dlpack::kCuda) return "CUDA device " + std::to_string(device.id);
  return "a device of DLPack's type " + std::to_string(device.type);
}

Arrays::Arrays(std::string_view layout, uintptr_t stream) : stream_(stream), layout_(layout) {
  if (layout_ != "bhsd" && layout_ != "bshd" && layout_ != "thd")
    throw nb::value_error(("layout: '" + std::string(layout_) + "' must be 'bhsd', 'bshd' or 'thd'").c_str());
}

void Arrays::input(cuflash_tensor& out, nb::handle object, const char* name) {
  if (!object.is_none()) fill(out, take(object, name), name);
}

void Arrays::output(cuflash_mutable_tensor& out, nb::handle object, const char* name) {
  if (object.is_none()) return;
  const Array& array = take(object, name);
  if (array.read_only) throw nb::value_error((std::string(name) + ": is read-only, and the call writes to it").c_str());
  fill(out, array, name);
}

void Arrays::rows(cuflash_tensor& out, nb::handle object, const char* name) {
  input(out, object, name), reorder(out, layout_);
}

void Arrays::rows(cuflash_mutable_tensor& out, nb::handle object, const char* name) {
  output(out, object, name), reorder(out, layout_);
}

void Arrays::cache(cuflash_mutable_tensor& out, nb::handle object, const char* name, bool written) {
  if (written) return rows(out, object, name);
  if (object.is_none()) return;
  fill(out, take(object, name), name);
  reorder(out, layout_);
}

const Array& Arrays::take(nb::handle object, const char* name) {
  Array& array = arrays_[count_++];
  array = array_of(object, name, stream_);
  if (!first_name_) {
    first_name_ = name, device_ = array.device;
    if (device_.type != dlpack::kCpu && device_.type != dlpack::kCuda)
      throw nb::value_error(
          (std::string(name) + ": is on " + device_text(device_) + "; cuflash computes on the CPU and on CUDA devices")
              .c_str());
  } else if (array.device.type != device_.type || array.device.id != device_.id) {
    throw nb::value_error((std::string(name) + ": is on " + device_text(array.device) + ", but " + first_name_ +
                           " is on " + device_text(device_) + "; all arrays of a call must be on the same device")
                              .c_str());
  }
  return array;
}

}  // namespace cuflash::python
