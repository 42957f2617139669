// DLPack: through the C functions that a type offers, or through its method __dlpack__.
#include <string>

#include "routes.h"

namespace cuflash::python {

Array view_of(const dlpack::Tensor& tensor, const char* name) {
  require_rank(tensor.rank, name);
  if (tensor.dtype.lanes != 1) refuse_type(name, "of vectors");
  Array array;
  array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  array.type = {static_cast<dlpack::TypeCode>(tensor.dtype.code), tensor.dtype.bits};
  array.device = tensor.device;
  if (array.device.type == dlpack::kCudaHost) array.device = {dlpack::kCpu, 0};
  if (array.device.type == dlpack::kCudaManaged) array.device.type = dlpack::kCuda;
  array.rank = tensor.rank;
  int64_t contiguous = 1;
  for (int32_t d = tensor.rank; d-- > 0;) {
    array.shape[d] = tensor.shape[d];
    array.stride[d] = tensor.strides ? tensor.strides[d] : contiguous;
    contiguous *= tensor.shape[d];
  }
  return array;
}

namespace {

template <class Managed>
void release(void* tensor) {
  auto* managed = static_cast<Managed*>(tensor);
  if (managed->deleter) managed->deleter(managed);
}

Array adopt(dlpack::ManagedTensorVersioned* managed, const char* name) {
  decltype(Array::keeper) keeper(managed, {release<dlpack::ManagedTensorVersioned>});
  Array array = view_of(managed->tensor, name);
  array.read_only = (managed->flags & (dlpack::kReadOnly | dlpack::kIsCopy)) != 0;
  array.keeper = std::move(keeper);
  return array;
}

Array adopt(dlpack::ManagedTensor* managed, const char* name) {
  decltype(Array::keeper) keeper(managed, {release<dlpack::ManagedTensor>});
  Array array = view_of(managed->tensor, name);
  array.keeper = std::move(keeper);
  return array;
}

// DLPack takes a stream only for GPU memory, and has its own number for the default stream.
nb::object capsule_of(nb::handle object, uintptr_t stream) {
  const bool on_cuda = nb::cast<int>(nb::object(object.attr("__dlpack_device__")())[0]) == dlpack::kCuda;
  nb::dict arguments;
  if (on_cuda) arguments["stream"] = stream == 0 ? uintptr_t{1} : stream;
  arguments["max_version"] = nb::make_tuple(1, 3);
  const nb::object method = object.attr("__dlpack__");
  try {
    return method(**arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a producer from before DLPack 1 does not know max_version
  }
  PyDict_DelItemString(arguments.ptr(), "max_version");
  return method(**arguments);
}

}  // namespace

Array array_by_exchange(nb::handle object, const char* name, const dlpack::ExchangeApi& api) {
  if (api.tensor_of) {
    dlpack::Tensor tensor{};
    if (api.tensor_of(object.ptr(), &tensor) != 0) throw nb::python_error();
    return view_of(tensor, name);
  }
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api.managed_tensor_of(object.ptr(), &managed) != 0) throw nb::python_error();
  return adopt(managed, name);
}

Array array_by_dlpack(nb::handle object, const char* name, uintptr_t stream) {
  const nb::object capsule = capsule_of(object, stream);
  // A renamed capsule no longer frees the tensor: from then on the Array does.
  const auto take = [&](const char* label, const char* used) {
    void* managed = PyCapsule_GetPointer(capsule.ptr(), label);
    if (PyCapsule_SetName(capsule.ptr(), used) != 0) throw nb::python_error();
    return managed;
  };
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned"))
    return adopt(static_cast<dlpack::ManagedTensorVersioned*>(take("dltensor_versioned", "used_dltensor_versioned")),
                 name);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    return adopt(static_cast<dlpack::ManagedTensor*>(take("dltensor", "used_dltensor")), name);
  throw nb::type_error((std::string(name) + ": its __dlpack__ did not return a DLPack capsule").c_str());
}

}  // namespace cuflash::python
