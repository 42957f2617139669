#include "array.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>

#include "routes.h"

namespace cuflash::python {
namespace {

enum class Protocol { exchange, torch, buffer, dlpack, none };

struct Route {
  Protocol protocol = Protocol::none;
  const dlpack::ExchangeApi* exchange = nullptr;
  bool is_torch = false;
};

const dlpack::ExchangeApi* exchange_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->version.major > 1) api = api->previous;
  return api;
}

bool is_torch_tensor(nb::handle type) {
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  PyErr_Clear();
  if (!torch.is_valid()) return false;
  const nb::object tensor = nb::getattr(torch, "Tensor", nb::none());  // None while PyTorch is still being imported
  return PyType_Check(tensor.ptr()) && PyObject_IsSubclass(type.ptr(), tensor.ptr()) == 1;
}

Route find_route(nb::handle object) {
  const nb::handle type = object.type();
  const bool is_torch = is_torch_tensor(type);
  if (const auto* api = exchange_of(type)) return {Protocol::exchange, api, is_torch};
  if (is_torch) return {Protocol::torch, nullptr, true};
  // CuPy's arrays claim to have the buffer protocol, but refuse it.
  const bool on_gpu = nb::hasattr(type, "__cuda_array_interface__");
  if (PyObject_CheckBuffer(object.ptr()) && !on_gpu) return {Protocol::buffer};
  if (nb::hasattr(type, "__dlpack__")) return {Protocol::dlpack};
  return {};
}

// Inspecting a type's attributes takes longer than reading an array: the route is cached, which keeps the type alive.
const Route& route_of(nb::handle object) {
  static auto& routes = *new std::unordered_map<PyObject*, Route>;
  const nb::handle type = object.type();
  const auto found = routes.find(type.ptr());
  if (found != routes.end()) return found->second;
  const Route route = find_route(object);
  type.inc_ref();
  return routes.emplace(type.ptr(), route).first->second;
}

// The name of a type in the array libraries.
std::string name_of(ElementType type) {
  const std::string bits = std::to_string(type.bits);
  switch (type.code) {
    case dlpack::kInt: return "int" + bits;
    case dlpack::kUInt: return "uint" + bits;
    case dlpack::kFloat: return "float" + bits;
    case dlpack::kBfloat: return "bfloat" + bits;
    case dlpack::kComplex: return "complex" + bits;
    case dlpack::kBool: return "bool";
    case dlpack::kOpaque: return "of elements that only their library can read";
  }
  const int named = type.code - dlpack::kFirstNamed;
  if (named < static_cast<int>(std::size(dlpack::kNamed))) return dlpack::kNamed[named];
  return "of " + bits + " bits, number " + std::to_string(type.code) + " of DLPack's types,";
}

}  // namespace

int64_t Array::bytes() const {
  int64_t count = (type.bits + 7) / 8;
  for (int32_t d = 0; d < rank; ++d) count *= shape[d];
  return count;
}

Array Array::view() const {
  Array copy;
  copy.data = data, copy.type = type, copy.device = device, copy.read_only = read_only, copy.rank = rank;
  std::copy(std::begin(shape), std::end(shape), copy.shape);
  std::copy(std::begin(stride), std::end(stride), copy.stride);
  return copy;
}

// PyTorch's own function refuses in DLPack's terms; reading the tensor through its methods refuses in the caller's.
static Array array_of_torch_by_exchange(const Route& route, nb::handle object, const char* name) {
  try {
    return array_by_exchange(object, name, *route.exchange);
  } catch (nb::python_error&) {
    array_of_torch(object, name);
    throw;
  }
}

static Array by_route(const Route& route, nb::handle object, const char* name, uintptr_t stream) {
  switch (route.protocol) {
    case Protocol::exchange:
      return route.is_torch ? array_of_torch_by_exchange(route, object, name)
                            : array_by_exchange(object, name, *route.exchange);
    case Protocol::torch: return array_of_torch(object, name);
    case Protocol::buffer: return array_by_buffer(object, name);
    case Protocol::dlpack: return array_by_dlpack(object, name, stream);
    case Protocol::none: break;
  }
  throw nb::type_error((std::string(name) + ": " + text_of(nb::object(object.type().attr("__name__"))) +
                        " is not an array; pass one of NumPy, PyTorch, JAX, CuPy, or of anything else with __dlpack__")
                           .c_str());
}

// Strides of an empty array are never used, and libraries put arbitrary values there.
static void set_strides_of_empty(Array& array) {
  int64_t stride = 1;
  for (int32_t d = array.rank; d-- > 0; stride *= array.shape[d]) array.stride[d] = stride;
}

static bool is_nested(const Route& route, nb::handle object) {
  return route.is_torch && nb::object(object.attr("is_nested")).is(nb::handle(Py_True));
}

Array array_of(nb::handle object, const char* name, uintptr_t stream, int32_t max_dimensions) {
  if (object.is_none()) return {};
  const Route& route = route_of(object);
  try {
    Array array = by_route(route, object, name, stream);
    require_rank(array.rank, name, max_dimensions);
    if (route.is_torch) require_storage(array, object, name);
    if (array.bytes() == 0) set_strides_of_empty(array);
    return array;
  } catch (nb::python_error& refusal) {  // the array's own library, which does not know the argument's name
    const std::string why = text_of(refusal.value());
    if (is_nested(route, object))
      nb::raise_from(refusal, PyExc_ValueError,
                     "%s: is a nested tensor; give its sequences packed, with cu_seqlens, or padded", name);
    nb::raise_from(refusal, PyExc_ValueError, "%s: its memory cannot be accessed: %s", name,
                   why.substr(0, why.find('\n')).c_str());
  }
}

Array array_of_new(nb::handle tensor, const char* name) { return by_route(route_of(tensor), tensor, name, 0); }

cuflash_dtype dtype_of(const Array& array, const char* name) {
  const auto is = [&](dlpack::TypeCode code, int bits) { return array.type.code == code && array.type.bits == bits; };
  if (is(dlpack::kFloat, 32)) return CUFLASH_F32;
  if (is(dlpack::kFloat, 16)) return CUFLASH_F16;
  if (is(dlpack::kBfloat, 16)) return CUFLASH_BF16;
  if (is(dlpack::kFloat, 64)) return CUFLASH_F64;
  if (is(dlpack::kInt, 32)) return CUFLASH_I32;
  if (is(dlpack::kBool, 8)) return CUFLASH_BOOL;
  refuse_type(name, name_of(array.type));
}

std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  const char* bytes = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) : nullptr;
  if (!bytes) throw nb::python_error();
  return bytes;
}

void require_rank(int64_t rank, const char* name, int64_t most) {
  if (rank >= 1 && rank <= most) return;
  throw nb::value_error((std::string(name) + ": has " + std::to_string(rank) + " dimensions; it must have 1 to 4" +
                         (most > 4 ? ", or one more where it is packed" : ""))
                            .c_str());
}

void refuse_type(const char* name, const std::string& type) {
  throw nb::value_error(
      (std::string(name) + ": type " + type +
       " is not supported; values are float64, float32, float16 or bfloat16, lengths int32, masks bool")
          .c_str());
}

}  // namespace cuflash::python
