// PyTorch before 2.10 has no DLPack functions for C: its tensors are read through their methods. The names of these and
// the dtype objects are looked up once.
#include <limits>
#include <string>

#include "routes.h"

namespace cuflash::python {
namespace {

struct TorchNames {
  nb::object dtype = intern("dtype"), is_cpu = intern("is_cpu"), is_cuda = intern("is_cuda"), shape = intern("shape"),
             stride = intern("stride"), data_ptr = intern("data_ptr"), get_device = intern("get_device"),
             untyped_storage = intern("untyped_storage"), storage_offset = intern("storage_offset");
  static nb::object intern(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }
};

const TorchNames& names() {
  static const auto& names = *new TorchNames;
  return names;
}

struct TorchType {
  nb::object dtype;
  ElementType type;
};

struct TorchTypes {
  TorchType known[7];
  TorchTypes() {
    const nb::module_ torch = nb::module_::import_("torch");
    const auto named = [&](const char* name, dlpack::TypeCode code, int bits) {
      return TorchType{torch.attr(name), {code, bits}};
    };
    known[0] = named("bfloat16", dlpack::kBfloat, 16), known[1] = named("float16", dlpack::kFloat, 16);
    known[2] = named("float32", dlpack::kFloat, 32), known[3] = named("float64", dlpack::kFloat, 64);
    known[4] = named("int32", dlpack::kInt, 32), known[5] = named("bool", dlpack::kBool, 8);
    known[6] = named("uint8", dlpack::kUInt, 8);  // workspaces
  }
};

ElementType type_of(nb::handle dtype, const char* name) {
  static const auto& types = *new TorchTypes;
  for (const TorchType& type : types.known)
    if (type.dtype.is(dtype)) return type.type;
  refuse_type(name, text_of(dtype));
}

void copy_numbers(nb::handle tuple, int32_t rank, int64_t* out) {
  for (int32_t d = 0; d < rank; ++d) out[d] = PyLong_AsLongLong(PyTuple_GetItem(tuple.ptr(), d));
  if (PyErr_Occurred()) throw nb::python_error();
}

int64_t number_of(nb::handle object, const nb::object& method) {
  const nb::object result = object.attr(method)();
  const int64_t number = PyLong_AsLongLong(result.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

// The number of elements from the first to the last, inclusive; saturates at 64 bits.
int64_t reach_of(const Array& array) {
  int64_t reach = 1;
  for (int32_t d = 0; d < array.rank; ++d) {
    int64_t step = 0;
    if (__builtin_mul_overflow(array.shape[d] - 1, array.stride[d], &step) ||
        __builtin_add_overflow(reach, step, &reach))
      return std::numeric_limits<int64_t>::max();
  }
  return reach;
}

}  // namespace

void require_storage(const Array& array, nb::handle tensor, const char* name) {
  if (array.bytes() == 0) return;
  const TorchNames& names = python::names();
  const nb::object storage = tensor.attr(names.untyped_storage)();
  const int64_t held = PyObject_Size(storage.ptr());  // in bytes; its method nbytes() takes longer
  if (held < 0) throw nb::python_error();
  const int64_t item = (array.type.bits + 7) / 8, offset = number_of(tensor, names.storage_offset);
  const int64_t reach = reach_of(array);
  if (reach <= held / item - offset) return;
  throw nb::value_error(
      (std::string(name) + ": its storage holds " + std::to_string(held / item) +
       " elements, but its shape and strides reach element " +
       (reach > std::numeric_limits<int64_t>::max() - offset ? "2**63" : std::to_string(reach + offset)) +
       "; the storage was resized or freed after the tensor was made")
          .c_str());
}

Array array_of_torch(nb::handle tensor, const char* name) {
  const TorchNames& names = python::names();
  Array array;
  array.type = type_of(nb::object(tensor.attr(names.dtype)), name);
  if (!nb::object(tensor.attr(names.is_cpu)).is(nb::handle(Py_True))) {
    if (!nb::object(tensor.attr(names.is_cuda)).is(nb::handle(Py_True)))
      throw nb::value_error((std::string(name) + ": is on " + text_of(nb::object(tensor.attr("device"))) +
                             "; cuflash computes on the CPU and on CUDA devices")
                                .c_str());
    array.device = {dlpack::kCuda, nb::cast<int32_t>(tensor.attr(names.get_device)())};
  }
  const nb::object shape = tensor.attr(names.shape), stride = tensor.attr(names.stride)();
  const Py_ssize_t rank = PyTuple_Size(shape.ptr());
  require_rank(rank, name);
  array.rank = static_cast<int32_t>(rank);
  copy_numbers(shape, array.rank, array.shape);
  copy_numbers(stride, array.rank, array.stride);
  array.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr(names.data_ptr)()));
  return array;
}

}  // namespace cuflash::python
