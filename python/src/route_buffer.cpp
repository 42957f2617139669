// The buffer protocol: NumPy arrays, and everything else that exposes its memory that way.
#include <bit>
#include <string>
#include <string_view>

#include "routes.h"

namespace cuflash::python {
namespace {

static_assert(std::endian::native == std::endian::little);

// NumPy has no format letter for bfloat16, an extension type of ml_dtypes: it is read as integers of the same bits.
bool is_bfloat16(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return text_of(nb::getattr(dtype, "name", nb::none())) == "bfloat16";
}

std::unique_ptr<Py_buffer> open(nb::handle object) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0) return nullptr;
  return buffer;
}

ElementType type_of(const Py_buffer& buffer, const char* name) {
  std::string_view format = buffer.format ? buffer.format : "B";
  if (format[0] == '>' || format[0] == '!')
    throw nb::value_error((std::string(name) + ": has big-endian elements; make a native copy, for example " + name +
                           ".astype(" + name + ".dtype.newbyteorder('='))")
                              .c_str());
  if (format[0] == '@' || format[0] == '=' || format[0] == '<') format.remove_prefix(1);
  const int bits = static_cast<int>(8 * buffer.itemsize);
  if (format.size() == 1) {
    if (std::string_view("efd").find(format[0]) != format.npos) return {dlpack::kFloat, bits};
    if (std::string_view("bhilq").find(format[0]) != format.npos) return {dlpack::kInt, bits};
    if (std::string_view("BHILQ").find(format[0]) != format.npos) return {dlpack::kUInt, bits};
    if (format[0] == '?') return {dlpack::kBool, bits};
  }
  refuse_type(name, "with the buffer format " + std::string(format));
}

}  // namespace

Array array_by_buffer(nb::handle object, const char* name) {
  std::unique_ptr<Py_buffer> buffer = open(object);
  const bool bfloat16 = !buffer && (PyErr_Clear(), is_bfloat16(object));
  if (bfloat16) buffer = open(nb::object(object.attr("view")("uint16")));
  if (!buffer) {
    PyErr_Clear();
    refuse_type(name, text_of(nb::getattr(object, "dtype", object.type())));
  }
  decltype(Array::keeper) keeper(buffer.release(), {[](void* opened) {
                                   PyBuffer_Release(static_cast<Py_buffer*>(opened));
                                   delete static_cast<Py_buffer*>(opened);
                                 }});
  const auto& view = *static_cast<const Py_buffer*>(keeper.get());
  require_rank(view.ndim, name);
  Array array;
  array.data = view.buf;
  array.type = bfloat16 ? ElementType{dlpack::kBfloat, 16} : type_of(view, name);
  array.read_only = view.readonly != 0;
  array.rank = view.ndim;
  for (int32_t d = 0; d < view.ndim; ++d) {
    array.shape[d] = view.shape[d];
    array.stride[d] = view.strides[d] / view.itemsize;
    if (view.shape[d] > 1 && view.strides[d] % view.itemsize != 0)
      throw nb::value_error((std::string(name) + ": its stride of " + std::to_string(view.strides[d]) +
                             " bytes is not a multiple of its element, " + std::to_string(view.itemsize) +
                             " bytes; make a contiguous copy")
                                .c_str());
  }
  array.keeper = std::move(keeper);
  return array;
}

}  // namespace cuflash::python
