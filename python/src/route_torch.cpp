// PyTorch before 2.10 has no DLPack functions for C: its tensors are asked through their methods, whose names and types
// are looked up once.
#include <string>

#include "routes.h"

namespace cuflash::python {
namespace {

struct TorchNames {
  nb::object dtype = intern("dtype"), is_cpu = intern("is_cpu"), is_cuda = intern("is_cuda"), shape = intern("shape"),
             stride = intern("stride"), data_ptr = intern("data_ptr"), get_device = intern("get_device");
  static nb::object intern(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }
};

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

}  // namespace

Array array_of_torch(nb::handle tensor, const char* name) {
  static const auto& names = *new TorchNames;
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
