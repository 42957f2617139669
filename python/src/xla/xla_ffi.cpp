#include "xla_ffi.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <tuple>

#include "raise.h"
#include "xla_call.h"
#include "xla_ffi_api.h"

namespace nb = nanobind;

namespace cuflash::python {
namespace xla {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw FlashAttentionError(CUFLASH_INTERNAL, message); }

// A struct shorter than ours comes from an XLA version that these declarations do not describe.
template <class Struct>
void check_size(const Struct& s, const char* what) {
  if (s.struct_size < sizeof(Struct)) {
    refuse(std::string("XLA's ") + what + " has " + std::to_string(s.struct_size) +
           " bytes, this build of cuflash needs " + std::to_string(sizeof(Struct)) + ": use jax 0.5 or newer");
  }
}

DType dtype_of(DataType dtype) {
  switch (dtype) {
    case DataType::f64: return DType::f64;
    case DataType::f32: return DType::f32;
    case DataType::f16: return DType::f16;
    case DataType::bf16: return DType::bf16;
    case DataType::s32: return DType::i32;
    case DataType::boolean: return DType::boolean;
    default: refuse("XLA's element type " + std::to_string(static_cast<int>(dtype)) + " is not known here");
  }
}

// Names are separated by spaces, in the order of the buffers.
void add_operands(std::string_view names, const Buffers& buffers, std::vector<Operand>& operands) {
  check_size(buffers, "list of buffers");
  for (int64_t i = 0; i < buffers.size; ++i) {
    const size_t end = std::min(names.find(' '), names.size());
    if (end == 0 || buffers.types[i] != kBuffer) refuse("XLA's buffers are not those that were named");
    const Buffer& b = *buffers.values[i];
    check_size(b, "buffer");
    operands.push_back({names.substr(0, end), dtype_of(b.dtype), b.data, {b.dims, b.dims + b.rank}});
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  if (!names.empty()) refuse("XLA has fewer buffers than names: " + std::string(names));
}

std::string_view text(const Attributes& attributes, int64_t i) {
  const Text& t = *static_cast<const Text*>(attributes.values[i]);
  return {t.data, t.size};
}

void read_scalar(const Attributes& attributes, int64_t i, std::string_view name, Options& options) {
  const Options::Field field = options.find(name);
  if (attributes.types[i] != kScalar || (!field.real && !field.integer)) {
    refuse("attribute " + std::string(name) + " is not known here");
  }
  const Scalar& scalar = *static_cast<const Scalar*>(attributes.values[i]);
  if (scalar.dtype != (field.real ? DataType::f64 : DataType::s64)) {
    refuse("attribute " + std::string(name) + " has an unexpected type");
  }
  if (field.real) *field.real = *static_cast<const double*>(scalar.value);
  if (field.integer) *field.integer = *static_cast<const int64_t*>(scalar.value);
}

Call call_of(Direction direction, const CallFrame& frame) {
  check_size(frame, "call frame");
  check_size(frame.attributes, "list of attributes");
  Call call{direction, Layout::bhsd, {}, {}};
  std::string_view arguments, results;
  for (int64_t i = 0; i < frame.attributes.size; ++i) {
    const std::string_view name{frame.attributes.names[i]->data, frame.attributes.names[i]->size};
    if (frame.attributes.types[i] != kText) {
      read_scalar(frame.attributes, i, name, call.options);
    } else if (name == "layout") {
      call.layout = layout_of(text(frame.attributes, i));
    } else if (name == "arguments") {
      arguments = text(frame.attributes, i);
    } else if (name == "results") {
      results = text(frame.attributes, i);
    } else {
      refuse("attribute " + std::string(name) + " is not known here");
    }
  }
  add_operands(arguments, frame.arguments, call.operands);
  add_operands(results, frame.results, call.operands);
  return call;
}

// An error made by XLA, on its way back to XLA.
struct XlaError {
  Error* error;
};
void check(Error* error) {
  if (error) throw XlaError{error};
}

// Scratch in device memory, from XLA's own allocator. XLA frees in stream order, so its interface allows returning the
// block after the launch, before the kernel has run.
class Workspace {
 public:
  Workspace(const CallFrame& frame, size_t size) : frame_(frame), size_(size) {
    if (size == 0) return;
    // XLA guarantees an alignment of 16 bytes at most; the library requires kAlignment.
    size_ += kAlignment;
    AllocateArgs args{sizeof(AllocateArgs), nullptr, frame.context, size_, 16, nullptr};
    check(frame.api->allocate(&args));
    data_ = args.data;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (!data_) return;
    FreeArgs args{sizeof(FreeArgs), nullptr, frame_.context, size_, data_};
    if (Error* error = frame_.api->free(&args)) {
      DestroyErrorArgs destroy{sizeof(DestroyErrorArgs), nullptr, error};
      frame_.api->destroy_error(&destroy);
    }
  }
  void* data() const {
    const auto address = reinterpret_cast<uintptr_t>(data_);
    return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  static constexpr size_t kAlignment = 64;
  const CallFrame& frame_;
  size_t size_;
  void* data_ = nullptr;
};

void execute(Device device, Direction direction, const CallFrame& frame) {
  const Call call = call_of(direction, frame);
  const int64_t count = slices(call);
  if (count == 0) return;
  Execution execution{.device = device,
                      .num_threads = static_cast<int32_t>(call.options.num_threads),
                      .deterministic = call.options.deterministic != 0};
  if (device == Device::cuda) {
    check_size(*frame.api, "API");
    GetStreamArgs args{sizeof(GetStreamArgs), nullptr, frame.context, nullptr};
    check(frame.api->get_stream(&args));
    execution.stream = args.stream;
  }
  // Every slice has the same shape and needs the same workspace; on one stream they can share it.
  const size_t bytes = device == Device::cuda ? workspace_size(direction, slice(call, 0), execution) : 0;
  const Workspace workspace(frame, bytes);
  execution.workspace = workspace.data(), execution.workspace_size = bytes;
  for (int64_t i = 0; i < count; ++i) run(direction, slice(call, i), execution);
}

ErrorCode code_of(cuflash_status status) {
  switch (status) {
    case CUFLASH_INVALID_ARGUMENT: return ErrorCode::invalid_argument;
    case CUFLASH_OUT_OF_MEMORY: return ErrorCode::resource_exhausted;
    case CUFLASH_UNSUPPORTED:
    case CUFLASH_NO_DEVICE: return ErrorCode::unimplemented;
    default: return ErrorCode::internal;
  }
}

Error* error_of(const CallFrame& frame, const char* message, ErrorCode code) {
  CreateErrorArgs args{sizeof(CreateErrorArgs), nullptr, message, code};
  return frame.api->create_error(&args);
}

// XLA asks for the handler's version once, when it is registered, and refuses one that it does not support. The answer
// is XLA's own version unless that is newer than ours: in all versions up to ours, the fields used here have the same
// offsets. An XLA that does not state its version is of the first one.
bool answered_metadata(const CallFrame& frame) {
  for (Extension* e = frame.extensions; e; e = e->next) {
    if (e->type != kMetadataExtension) continue;
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(e)->metadata;
    const int minor = frame.api ? std::min(frame.api->version.minor, int32_t{kMinor}) : kFirstMinor;
    metadata.version = {sizeof(Version), nullptr, kMajor, minor};
    metadata.traits = 0;
    return true;
  }
  return false;
}

template <Device device, Direction direction>
Error* handler(CallFrame* frame) {
  if (answered_metadata(*frame)) return nullptr;
  try {
    if (frame->stage == kExecute) execute(device, direction, *frame);
    return nullptr;
  } catch (const XlaError& e) {
    return e.error;
  } catch (const FlashAttentionError& e) {
    return error_of(*frame, e.what(), code_of(e.status()));
  } catch (const std::bad_alloc&) {
    return error_of(*frame, "out of host memory", ErrorCode::resource_exhausted);
  } catch (const std::exception& e) {
    return error_of(*frame, e.what(), ErrorCode::internal);
  }
}

nb::object capsule(Handler* handler) {
  PyObject* c = PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr);
  if (!c) throw nb::python_error();
  return nb::steal(c);
}

// {"cpu": {"cuflash_forward": capsule, ...}, "CUDA": {...}}
nb::dict handlers() {
  nb::dict cpu, cuda, all;
  cpu["cuflash_forward"] = capsule(handler<Device::cpu, Direction::forward>);
  cpu["cuflash_backward"] = capsule(handler<Device::cpu, Direction::backward>);
  cuda["cuflash_forward"] = capsule(handler<Device::cuda, Direction::forward>);
  cuda["cuflash_backward"] = capsule(handler<Device::cuda, Direction::backward>);
  all["cpu"] = cpu, all["CUDA"] = cuda;
  return all;
}

DType dtype_named(const std::string& name, const std::string& dtype) {
  if (dtype == "float64") return DType::f64;
  if (dtype == "float32") return DType::f32;
  if (dtype == "float16") return DType::f16;
  if (dtype == "bfloat16") return DType::bf16;
  if (dtype == "int32") return DType::i32;
  if (dtype == "bool") return DType::boolean;
  throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT, name + ": dtype " + dtype + " is not supported");
}

using Described = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>>;  // name, dtype, shape

// Applies the library's own rules while JAX traces, when there is no data yet: a bad argument is a ValueError at the
// call, not an error of the compiled program. Lengths are taken as zeros, which are always legal.
void check_call(const std::string& direction, const std::string& layout, const Described& described,
                const nb::dict& options) try {
  Call call{direction == "forward" ? Direction::forward : Direction::backward, layout_of(layout), {}, {}};
  for (const auto& [key, value] : options) {
    const auto name = nb::cast<std::string>(key);
    const Options::Field field = call.options.find(name);
    if (!field.real && !field.integer) refuse("attribute " + name + " is not known here");
    if (field.real) *field.real = nb::cast<double>(value);
    if (field.integer) *field.integer = nb::cast<int64_t>(value);
  }
  // A distinct address for each operand, beyond all memory and never read: explain() computes nothing.
  const auto nowhere = [](size_t n) { return reinterpret_cast<void*>((n + 1) << 52); };
  std::vector<std::vector<int32_t>> lengths;
  lengths.reserve(described.size());
  for (const auto& [name, dtype, shape] : described) {
    Operand operand{name, dtype_named(name, dtype), nowhere(call.operands.size()), shape};
    if (operand.dtype == DType::i32) {
      size_t size = 1;
      for (int64_t extent : shape) size *= static_cast<size_t>(extent);
      operand.data = lengths.emplace_back(size).data();
    }
    call.operands.push_back(operand);
  }
  const Slice s = slice(call, 0);
  const Execution execution{.device = Device::cpu};
  if (call.direction == Direction::forward) {
    explain(s.attention, s.outputs, execution);
  } else {
    explain(s.attention, s.gradients, execution);
  }
} catch (const FlashAttentionError& e) {
  raise_error(e.status(), e.what(), {layout});
}

}  // namespace
}  // namespace xla

void bind_xla_ffi(nb::module_& module) {
  module.def("xla_handlers", &xla::handlers, "Handlers for jax.ffi.register_ffi_target, by platform and name.");
  module.def("xla_check", &xla::check_call, nb::arg("direction"), nb::arg("layout"), nb::arg("operands"),
             nb::arg("options"), "Raises what a call with such operands (name, dtype, shape) would raise.");
}

}  // namespace cuflash::python
