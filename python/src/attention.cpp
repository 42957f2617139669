// Arrays and options -> the library's structs -> one call without the GIL.
#include <string>
#include <string_view>
#include <utility>

#include "call.h"
#include "raise.h"

namespace cuflash::python {
namespace {

std::string device_text(dlpack::Device device) {
  if (device.type == dlpack::kCpu) return "the CPU";
  if (device.type == dlpack::kCuda) return "CUDA device " + std::to_string(device.id);
  return "a device of DLPack's type " + std::to_string(device.type);
}

// Takes the arrays of one call: all on one device, outputs writable, heads and rows in the library's order.
class Arrays {
 public:
  explicit Arrays(const Options& options) : stream_(options.stream), layout_(options.layout) {
    if (layout_ != "bhsd" && layout_ != "bshd" && layout_ != "thd")
      throw nb::value_error(("layout: '" + std::string(layout_) + "' must be 'bhsd', 'bshd' or 'thd'").c_str());
  }

  void input(cuflash_tensor& out, nb::handle object, const char* name) {
    if (!object.is_none()) fill(out, take(object, name), name);
  }
  void output(cuflash_mutable_tensor& out, nb::handle object, const char* name) {
    if (object.is_none()) return;
    const Array& array = take(object, name);
    if (array.read_only)
      throw nb::value_error((std::string(name) + ": is read-only, and the call writes to it").c_str());
    fill(out, array, name);
  }
  // With rows and heads: q, k, v, out and their gradients.
  void rows(cuflash_tensor& out, nb::handle object, const char* name) { input(out, object, name), reorder(out); }
  void rows(cuflash_mutable_tensor& out, nb::handle object, const char* name) {
    output(out, object, name), reorder(out);
  }

  dlpack::Device device() const { return device_; }

 private:
  const Array& take(nb::handle object, const char* name) {
    Array& array = arrays_[count_++];
    array = array_of(object, name, stream_);
    if (!first_name_) {
      first_name_ = name, device_ = array.device;
      if (device_.type != dlpack::kCpu && device_.type != dlpack::kCuda)
        throw nb::value_error((std::string(name) + ": is on " + device_text(device_) +
                               "; cuflash computes on the CPU and on CUDA devices")
                                  .c_str());
    } else if (array.device.type != device_.type || array.device.id != device_.id) {
      throw nb::value_error((std::string(name) + ": is on " + device_text(array.device) + ", but " + first_name_ +
                             " is on " + device_text(device_) + "; all arrays of a call must be on the same device")
                                .c_str());
    }
    return array;
  }

  template <class Tensor>
  static void fill(Tensor& out, const Array& array, const char* name) {
    out.data = array.data;
    out.dtype = dtype_of(array, name);
    out.rank = array.rank;
    for (int d = 0; d < 4; ++d) out.shape[d] = array.shape[d], out.stride[d] = array.stride[d];
  }
  template <class Tensor>
  void reorder(Tensor& out) const {
    if (layout_ == "bshd" && out.rank == 4)
      std::swap(out.shape[1], out.shape[2]), std::swap(out.stride[1], out.stride[2]);
  }

  static constexpr size_t kMost = 20;  // backward with everything
  const uintptr_t stream_;
  const std::string_view layout_;
  Array arrays_[kMost];
  size_t count_ = 0;
  const char* first_name_ = nullptr;
  dlpack::Device device_{dlpack::kCpu, 0};
};

cuflash_attention attention_of(Arrays& arrays, nb::handle q, nb::handle k, nb::handle v, const Options& o) {
  cuflash_attention a;
  cuflash_attention_init(&a);
  arrays.rows(a.q, q, "q"), arrays.rows(a.k, k, "k"), arrays.rows(a.v, v, "v");
  a.scale = o.scale.value_or(0), a.has_scale = o.scale.has_value();
  a.causal = o.causal, a.alignment = o.top_left ? CUFLASH_TOP_LEFT : CUFLASH_BOTTOM_RIGHT;
  a.window_left = o.window_left, a.window_right = o.window_right, a.softcap = o.softcap;
  arrays.input(a.alibi_slopes, o.alibi_slopes, "alibi_slopes");
  arrays.input(a.bias, o.bias, "bias"), arrays.input(a.mask, o.mask, "mask"), arrays.input(a.sink, o.sink, "sink");
  a.dropout_p = o.dropout_p, a.dropout_seed = o.dropout_seed, a.dropout_offset = o.dropout_offset;
  arrays.input(a.cu_seqlens_q, o.cu_seqlens_q, "cu_seqlens_q");
  arrays.input(a.cu_seqlens_k, o.cu_seqlens_k, "cu_seqlens_k");
  arrays.input(a.seqlens_q, o.seqlens_q, "seqlens_q"), arrays.input(a.seqlens_k, o.seqlens_k, "seqlens_k");
  a.max_seqlen_q = o.max_seqlen_q, a.max_seqlen_k = o.max_seqlen_k;
  return a;
}

cuflash_forward_outputs tensors_of(Arrays& arrays, const ForwardArrays& a) {
  cuflash_forward_outputs t;
  cuflash_forward_outputs_init(&t);
  arrays.rows(t.o, a.out, "out"), arrays.output(t.lse, a.lse, "lse");
  return t;
}

cuflash_backward_tensors tensors_of(Arrays& arrays, const BackwardArrays& a) {
  cuflash_backward_tensors t;
  cuflash_backward_tensors_init(&t);
  arrays.rows(t.o, a.out, "out"), arrays.input(t.lse, a.lse, "lse");
  arrays.rows(t.dout, a.dout, "dout"), arrays.input(t.dlse, a.dlse, "dlse");
  arrays.rows(t.dq, a.dq, "dq"), arrays.rows(t.dk, a.dk, "dk"), arrays.rows(t.dv, a.dv, "dv");
  arrays.output(t.dbias, a.dbias, "dbias"), arrays.output(t.dsink, a.dsink, "dsink");
  return t;
}

// What the frameworks say about their memory is believed: on the CPU no driver is asked where pointers point to.
cuflash_execution execution_of(const Arrays& arrays, const Options& o) {
  cuflash_execution e;
  cuflash_execution_init(&e);
  e.device = arrays.device().type == dlpack::kCuda ? CUFLASH_DEVICE_CUDA : CUFLASH_DEVICE_CPU;
  e.num_threads = o.num_threads, e.deterministic = o.deterministic, e.check_lengths = o.check_lengths;
  e.stream = reinterpret_cast<void*>(o.stream);
  e.workspace_from_pool = o.allocate.is_none();
  return e;
}

auto run_of(const ForwardArrays&) { return cuflash_forward; }
auto run_of(const BackwardArrays&) { return cuflash_backward; }
auto size_of(const ForwardArrays&) { return cuflash_forward_workspace_size; }
auto size_of(const BackwardArrays&) { return cuflash_backward_workspace_size; }
auto explain_of(const ForwardArrays&) { return cuflash_explain_forward; }
auto explain_of(const BackwardArrays&) { return cuflash_explain_backward; }

Array workspace_of(nb::handle allocated, size_t bytes, const Options& o, dlpack::Device device) {
  Array workspace = array_of(allocated, "workspace", o.stream);
  if (workspace.device.type != device.type || workspace.device.id != device.id ||
      workspace.bytes() < static_cast<int64_t>(bytes))
    throw nb::value_error(("allocate: returned " + std::to_string(workspace.bytes()) + " bytes on " +
                           device_text(workspace.device) + " where " + std::to_string(bytes) + " bytes on " +
                           device_text(device) + " were asked for")
                              .c_str());
  return workspace;
}

template <class CallArrays>
void run(const CallArrays& a, const Options& o) {
  Arrays arrays(o);
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const auto tensors = tensors_of(arrays, a);
  cuflash_execution execution = execution_of(arrays, o);
  nb::object allocated;  // held until the call has launched what uses it: another thread may get it afterwards
  Array workspace;
  if (execution.device == CUFLASH_DEVICE_CUDA && !o.allocate.is_none()) {
    size_t bytes = 0;
    check(size_of(a)(&attention, &tensors, &execution, &bytes), o.layout);
    if (bytes > 0) {
      allocated = nb::object(o.allocate(bytes));
      workspace = workspace_of(allocated, bytes, o, arrays.device());
      execution.workspace = workspace.data, execution.workspace_size = bytes;
    }
  }
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = run_of(a)(&attention, &tensors, &execution);
  }
  check(status, o.layout);
}

template <class CallArrays>
std::string explain(const CallArrays& a, const Options& o) {
  Arrays arrays(o);
  const cuflash_attention attention = attention_of(arrays, a.q, a.k, a.v, o);
  const auto tensors = tensors_of(arrays, a);
  const cuflash_execution execution = execution_of(arrays, o);
  size_t needed = 0;
  check(explain_of(a)(&attention, &tensors, &execution, nullptr, 0, &needed), o.layout);
  std::string text(needed, '\0');
  check(explain_of(a)(&attention, &tensors, &execution, text.data(), needed, &needed), o.layout);
  text.resize(needed - 1);
  return text;
}

}  // namespace

void forward(const ForwardArrays& arrays, const Options& options) { run(arrays, options); }
void backward(const BackwardArrays& arrays, const Options& options) { run(arrays, options); }
std::string explain_forward(const ForwardArrays& arrays, const Options& options) { return explain(arrays, options); }
std::string explain_backward(const BackwardArrays& arrays, const Options& options) { return explain(arrays, options); }

}  // namespace cuflash::python
