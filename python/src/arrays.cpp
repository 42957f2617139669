#include "arrays.h"

#include <type_traits>
#include <utility>

#include "routes.h"

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
void fill_part(Tensor& out, const Array& packed, int64_t part, const char* name) {
  const int32_t cut = packed.rank - 3;
  out.data = packed.data;
  if (packed.bytes() != 0) {
    const int64_t offset = part * packed.stride[cut] * (packed.type.bits / 8);
    out.data = static_cast<char*>(packed.data) + offset;
  }
  out.dtype = dtype_of(packed, name);
  out.rank = packed.rank - 1;
  for (int32_t d = 0; d < out.rank; ++d) {
    const int32_t from = d < cut ? d : d + 1;
    out.shape[d] = packed.shape[from], out.stride[d] = packed.stride[from];
  }
}

void require_absent(nb::handle object, const char* name, const char* packed) {
  if (!object.is_none())
    throw nb::value_error((std::string(name) + ": must be None, because " + packed + " contains it").c_str());
}

void require_writable(const Array& array, const char* name) {
  if (array.read_only) throw nb::value_error((std::string(name) + ": is read-only, and the call writes to it").c_str());
}

template <class Tensor>
void reorder(Tensor& out, std::string_view layout) {
  if (layout == "bshd" && out.rank == 4) std::swap(out.shape[1], out.shape[2]), std::swap(out.stride[1], out.stride[2]);
}

}  // namespace

void require_parts(const Array& array, int64_t count, const char* name) {
  if (array.rank >= 3 && array.shape[array.rank - 3] == count) return;
  std::string shape;
  for (int32_t d = 0; d < array.rank; ++d) shape += (d ? ", " : "") + std::to_string(array.shape[d]);
  const std::string needed = std::to_string(count);
  throw nb::value_error((std::string(name) + " has shape [" + shape + "]; its third dimension from the end must be " +
                         needed + ": [..., " + needed + ", H, D]")
                            .c_str());
}

std::string device_text(dlpack::Device device) {
  if (device.type == dlpack::kCpu) return "the CPU";
  if (device.type == dlpack::kCuda) return "CUDA device " + std::to_string(device.id);
  constexpr std::pair<int32_t, const char*> names[] = {
      {4, "OpenCL"},       {7, "Vulkan"},  {8, "Metal"},   {9, "VPI"},      {10, "ROCm"},
      {11, "ROCm's host"}, {14, "oneAPI"}, {15, "WebGPU"}, {16, "Hexagon"}, {17, "MAIA"}};
  for (const auto& [type, name] : names)
    if (type == device.type) return std::string(name) + " memory";
  return "another kind of device (number " + std::to_string(device.type) + " of DLPack's)";
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
  const Array array = take(object, name);
  require_writable(array, name);
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

Packing packing_of(nb::handle k, nb::handle v) {
  if (!v.is_none()) return Packing::none;
  return k.is_none() ? Packing::qkv : Packing::kv;
}

template <class Tensor>
void Arrays::triple(Tensor& q, Tensor& k, Tensor& v, const Triple& given, Packing packing) {
  if (packing == Packing::qkv) {
    require_absent(given.k, given.name_k, given.name_qkv), require_absent(given.v, given.name_v, given.name_qkv);
    return parts({&q, &k, &v}, given.q, given.name_qkv);
  }
  rows(q, given.q, given.name_q);
  if (packing == Packing::kv) {
    require_absent(given.v, given.name_v, given.name_kv);
    return parts({&k, &v}, given.k, given.name_kv);
  }
  rows(k, given.k, given.name_k), rows(v, given.v, given.name_v);
}

template void Arrays::triple(cuflash_tensor&, cuflash_tensor&, cuflash_tensor&, const Triple&, Packing);
template void Arrays::triple(cuflash_mutable_tensor&, cuflash_mutable_tensor&, cuflash_mutable_tensor&, const Triple&,
                             Packing);

template <class Tensor>
void Arrays::parts(std::initializer_list<Tensor*> out, nb::handle object, const char* name) {
  if (object.is_none()) return;
  const Array array = take(object, name, 5);
  if constexpr (std::is_same_v<Tensor, cuflash_mutable_tensor>) require_writable(array, name);
  require_parts(array, static_cast<int64_t>(out.size()), name);
  int64_t part = 0;
  for (Tensor* tensor : out) fill_part(*tensor, array, part++, name), reorder(*tensor, layout_);
}

Array Arrays::read(nb::handle object, const char* name, int32_t max_dimensions) const {
  for (size_t n = 0; n < known_count_; ++n) {
    if (!known_[n].object.is(object)) continue;
    require_rank(known_[n].array->rank, name, max_dimensions);
    return known_[n].array->view();
  }
  return array_of(object, name, stream_, max_dimensions);
}

Array Arrays::take(nb::handle object, const char* name, int32_t max_dimensions) {
  Array array = read(object, name, max_dimensions);
  keepers_[count_++] = std::move(array.keeper);
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
