#include "torch_calls.h"

#include <cuflash/cuflash.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "call.h"

namespace cuflash::python {
namespace {

// True if every element has its own place and there are no gaps between them. PyTorch ignores the stride of a dimension
// of size 1.
bool is_dense(const Array& a) {
  int64_t elements = 1;
  for (int32_t d = 0; d < a.rank; ++d) elements *= a.shape[d];
  int64_t next = 1;  // the stride of the dimension that follows those already found
  for (int32_t found = 0; found < a.rank && next != elements; ++found) {
    int32_t d = 0;
    while (d < a.rank && (a.shape[d] == 1 || a.stride[d] != next)) ++d;
    if (d == a.rank) return false;
    next *= a.shape[d];
  }
  return next == elements;
}

bool is_contiguous(const Array& a) {
  int64_t expected = 1;
  for (int32_t d = a.rank; d-- > 0; expected *= a.shape[d])
    if (a.shape[d] != 1 && a.stride[d] != expected) return false;
  return true;
}

bool has_rows(const Array& a) { return a.stride[a.rank - 1] == 1 || a.shape[a.rank - 1] == 1; }

// A tensor whose rows are contiguous, which is all that the library requires: the caller's or a copy.
struct Rows {
  nb::object tensor = nb::none();
  Array given;  // the caller's
  Array array;
};

// PyTorch's types and functions, looked up once by cuflash/_torch/call.py.
struct Torch {
  nb::object tensor, parameter;        // the types
  nb::object f16, bf16, f32, f64, u8;  // the dtypes
  nb::object empty_cpu, empty_cuda;    // (shape, strides, dtype) -> tensor, on the current device; or None
  nb::object current_device, current_stream, num_threads;  // () and (device index) and () -> number
  nb::object new_like;                                     // tensor -> memory for its gradient
  nb::object clear_unused_rows;                            // (cu_seqlens, tensors...)
  nb::object deterministic;                                // () -> whether PyTorch is set to be deterministic
  nb::object records_graphs;                               // () -> whether gradients are enabled
  nb::tuple inactive;                                      // functions that return 0 or False in plain eager mode
  nb::object forward_mode;                                 // the module torch.autograd.forward_ad
  nb::object is_neg = intern("is_neg"), resolve_neg = intern("resolve_neg"), contiguous = intern("contiguous"),
             dtype = intern("dtype"), new_empty = intern("new_empty"), new_empty_strided = intern("new_empty_strided"),
             saved_tensors = intern("saved_tensors"), options = intern("options"),
             needs_input_grad = intern("needs_input_grad"), current_level = intern("_current_level"),
             is_cuda = intern("is_cuda"), requires_grad = intern("requires_grad"), transposed = intern("T");
  static nb::object intern(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }
};

nb::object numbers(std::initializer_list<int64_t> values) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  Py_ssize_t next = 0;
  for (int64_t value : values) PyTuple_SetItem(tuple.ptr(), next++, PyLong_FromLongLong(value));
  return tuple;
}

nb::object numbers(const int64_t* values, int32_t count) {
  nb::object tuple = nb::steal(PyTuple_New(count));
  for (int32_t n = 0; n < count; ++n) PyTuple_SetItem(tuple.ptr(), n, PyLong_FromLongLong(values[n]));
  return tuple;
}

nb::handle item(const nb::tuple& tuple, Py_ssize_t index) { return PyTuple_GetItem(tuple.ptr(), index); }

bool is_true(nb::handle object) { return object.is(nb::handle(Py_True)); }

Options options_of(const nb::tuple& options) {
  Options o{};
  Py_ssize_t next = 0;
  o.layout = nb::cast<const char*>(item(options, next++));
#define CUFLASH_READ(type, name, value) o.name = nb::cast<type>(item(options, next++));
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_READ, CUFLASH_READ)
#undef CUFLASH_READ
  return o;
}

// The inputs of one call, and memory on their device.
class Inputs {
 public:
  // extras: a tuple of the optional arrays, or None.
  Inputs(const Torch& torch, nb::handle q, nb::handle k, nb::handle v, nb::handle extras, const nb::tuple& options,
         const nb::tuple& execution)
      : torch_(torch), options(options_of(options)), arrays(this->options.layout, 0), packing(packing_of(k, v)) {
    const int32_t most = packing == Packing::none ? 4 : 5;
    read(this->q, q, "q", most), read(this->k, k, "k", most), read(this->v, v, "v", 4);
    Py_ssize_t next = 0;
#define CUFLASH_READ(name, kind)                                                             \
  if (!extras.is_none()) read(extras_[next], PyTuple_GetItem(extras.ptr(), next), #name, 4); \
  this->options.name = extras_[next++].tensor;
    CUFLASH_ATTENTION_ARRAYS(CUFLASH_READ)
#undef CUFLASH_READ
    set_runtime(execution);
  }

  // Reads a tensor of the call.
  void read(Rows& rows, nb::handle tensor, const char* name, int32_t max_dimensions);

  bool is_packed() const { return std::string_view(options.layout) == "thd"; }

  nb::object empty(const nb::object& shape, const nb::object& strides, nb::handle dtype) const {
    if (empty_.is_valid()) return empty_(shape, strides, dtype);
    return q.tensor.attr(torch_.new_empty_strided)(shape, strides, nb::arg("dtype") = dtype);
  }
  // Allocates through PyTorch's public function, which fills the memory if PyTorch is set to fill uninitialized memory.
  nb::object new_empty(const nb::object& shape, nb::handle dtype) const {
    return q.tensor.attr(torch_.new_empty)(shape, nb::arg("dtype") = dtype);
  }
  Workspace workspace(size_t bytes) const {
    nb::object owner = empty(numbers({static_cast<int64_t>(bytes)}), numbers({1}), torch_.u8);
    Array array = array_of_new(owner, "workspace");
    return {std::move(owner), std::move(array)};
  }
  // Results are never read before they are written, so their storage needs no check.
  void know_new(Rows& rows, nb::object tensor, const char* name) {
    if (tensor.is_none()) return;
    rows.tensor = std::move(tensor);
    rows.array = array_of_new(rows.tensor, name);
    arrays.know(rows.tensor, rows.array);
  }

 private:
  const Torch& torch_;

 public:
  Options options;
  Arrays arrays;
  Packing packing;
  Rows q, k, v;

 private:
  void set_runtime(const nb::tuple& execution);

  Rows extras_[0 CUFLASH_ATTENTION_ARRAYS(CUFLASH_COUNT)];
  nb::handle empty_;  // for ordinary tensors on the current device
};

void Inputs::read(Rows& rows, nb::handle tensor, const char* name, int32_t max_dimensions) {
  if (tensor.is_none()) return;
  rows.tensor = nb::borrow(tensor);
  if (is_true(nb::object(tensor.attr(torch_.is_neg)())))  // a view whose memory holds the negated numbers
    rows.tensor = tensor.attr(torch_.resolve_neg)();
  rows.array = array_of(rows.tensor, name, 0, max_dimensions);
  rows.given = rows.array.view();
  if (!has_rows(rows.array)) {
    rows.tensor = rows.tensor.attr(torch_.contiguous)();
    rows.array = array_of(rows.tensor, name, 0, max_dimensions);
  }
  arrays.know(rows.tensor, rows.array);
}

void Inputs::set_runtime(const nb::tuple& execution) {
  const bool ordinary = q.tensor.type().is(torch_.tensor) || q.tensor.type().is(torch_.parameter);
  if (!q.array.on_cuda()) {
    if (ordinary && !torch_.empty_cpu.is_none()) empty_ = torch_.empty_cpu;
    options.num_threads = nb::cast<int32_t>(item(execution, 0));
    if (options.num_threads == 0) options.num_threads = nb::cast<int32_t>(torch_.num_threads());
    return;
  }
  const int32_t index = q.array.device.id;
  if (ordinary && !torch_.empty_cuda.is_none() && nb::cast<int32_t>(torch_.current_device()) == index)
    empty_ = torch_.empty_cuda;
  options.stream = nb::cast<uintptr_t>(torch_.current_stream(index));
  options.deterministic = nb::cast<bool>(item(execution, 1));
}

// The dtype of a tensor; for types that have gradients, without asking the tensor.
nb::object torch_dtype(const Torch& torch, const Rows& rows) {
  const ElementType type = rows.array.type;
  if (type.code == dlpack::kBfloat && type.bits == 16) return torch.bf16;
  if (type.code == dlpack::kFloat) {
    if (type.bits == 16) return torch.f16;
    if (type.bits == 32) return torch.f32;
    if (type.bits == 64) return torch.f64;
  }
  return rows.tensor.attr(torch.dtype);
}

struct Results {
  nb::object out, lse = nb::none();
};

// The same as new_results in call.py, which gives the reasons.
Results new_results(const Torch& torch, const Inputs& in, bool want_lse) {
  const Array& q = in.q.array;
  const bool packed_qkv = in.packing == Packing::qkv;
  int64_t shape[5]{};
  const int32_t cut = packed_qkv ? q.rank - 3 : q.rank;
  int32_t rank = 0;
  if (packed_qkv) require_parts(q, 3, "qkv");
  if (in.packing == Packing::kv) require_parts(in.k.array, 2, "kv");
  for (int32_t d = 0; d < q.rank; ++d)
    if (d != cut) shape[rank++] = q.shape[d];
  if (rank != 3 && rank != 4)
    throw nb::value_error(
        ("q: has " + std::to_string(rank) + " dimensions; it must have 4, or 3 if sequences are packed").c_str());
  const Array& v = packed_qkv ? q : in.packing == Packing::kv ? in.k.array : in.v.array;
  const int64_t size = v.shape[v.rank - 1];
  const nb::object dtype = torch_dtype(torch, in.q);
  const nb::object& dtype_of_lse = dtype.is(torch.f64) ? torch.f64 : torch.f32;
  Results results;
  if (rank == 3) {
    results.out = in.new_empty(numbers({shape[0], shape[1], size}), dtype);
    if (want_lse) results.lse = in.new_empty(numbers({shape[1], shape[0]}), dtype_of_lse);
    return results;
  }
  const int64_t row = shape[2] * size, all = shape[1] * row;
  const bool bshd = std::string_view(in.options.layout) == "bshd";
  const bool transposed = !bshd && !is_contiguous(q) && q.stride[1] < q.stride[2];
  results.out = in.empty(numbers({shape[0], shape[1], shape[2], size}),
                         transposed ? numbers({all, size, shape[1] * size, 1}) : numbers({all, row, size, 1}), dtype);
  if (want_lse) {
    const int64_t heads = bshd ? shape[2] : shape[1], length = bshd ? shape[1] : shape[2];
    results.lse = in.empty(numbers({shape[0], heads, length}), numbers({heads * length, length, 1}), dtype_of_lse);
  }
  return results;
}

// The same as new_gradients in call.py. Gradients of a usual call have one shape, which becomes a tuple of numbers
// once.
class GradientAllocation {
 public:
  GradientAllocation(const Torch& torch, const Inputs& in) : torch_(torch), in_(in) {}

  nb::object like(const Rows& of) {
    const Array& given = of.given;
    if (in_.is_packed() || !has_rows(given) || !is_dense(given)) return torch_.new_like(of.tensor);
    if (!made_for_ || !same_layout(*made_for_, given)) {
      made_for_ = &given, dtype_ = torch_dtype(torch_, of);
      shape_ = numbers(given.shape, given.rank), strides_ = numbers(given.stride, given.rank);
    }
    return in_.empty(shape_, strides_, dtype_);
  }

 private:
  static bool same_layout(const Array& a, const Array& b) {
    return a.rank == b.rank && a.type.code == b.type.code && a.type.bits == b.type.bits &&
           std::equal(a.shape, a.shape + a.rank, b.shape) && std::equal(a.stride, a.stride + a.rank, b.stride);
  }

  const Torch& torch_;
  const Inputs& in_;
  const Array* made_for_ = nullptr;
  nb::object shape_, strides_, dtype_;
};

Results attend(const Torch& torch, nb::handle q, nb::handle k, nb::handle v, nb::handle extras,
               const nb::tuple& options, const nb::tuple& execution, bool want_lse) {
  Inputs in(torch, q, k, v, extras, options, execution);
  Rows out, lse;
  Results results = new_results(torch, in, want_lse);
  in.know_new(out, results.out, "out"), in.know_new(lse, results.lse, "lse");
  forward(in.arrays, {in.q.tensor, in.k.tensor, in.v.tensor, out.tensor, lse.tensor}, in.options,
          [&](size_t bytes) { return in.workspace(bytes); });
  if (in.is_packed())
    torch.clear_unused_rows(in.options.cu_seqlens_q, results.out,
                            want_lse ? nb::object(results.lse.attr(torch.transposed)) : nb::none());
  return results;
}

nb::object results(const Torch& torch, nb::handle q, nb::handle k, nb::handle v, nb::handle extras,
                   const nb::tuple& options, const nb::tuple& execution, bool want_lse) {
  const Results computed = attend(torch, q, k, v, extras, options, execution, want_lse);
  return nb::make_tuple(computed.out, computed.lse);
}

// Gradients in the order of call.py's Wanted.
struct Gradients {
  Rows of[5];
};

void differentiate(const Torch& torch, Inputs& in, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dlse,
                   const bool (&wanted)[5], Gradients& gradients) {
  Rows rows_out, rows_lse, rows_dout, rows_dlse;
  in.read(rows_out, out, "out", 4), in.read(rows_lse, lse, "lse", 4);
  in.read(rows_dout, dout, "dout", 4), in.read(rows_dlse, dlse, "dlse", 4);
  auto& [dq, dk, dv, dbias, dsink] = gradients.of;
  GradientAllocation allocation(torch, in);
  if (wanted[0]) in.know_new(dq, allocation.like(in.q), "dq");
  if (wanted[1]) in.know_new(dk, allocation.like(in.k), "dk");
  if (wanted[2]) in.know_new(dv, allocation.like(in.v), "dv");
  // dbias is read like bias, whose strides decide over which dimensions to sum; an empty tensor may have other strides.
  if (wanted[3]) in.read(dbias, torch.new_like(in.options.bias), "dbias", 4);
  if (wanted[4]) in.know_new(dsink, torch.new_like(in.options.sink), "dsink");
  backward(in.arrays,
           {in.q.tensor, in.k.tensor, in.v.tensor, rows_out.tensor, rows_lse.tensor, rows_dout.tensor, rows_dlse.tensor,
            dq.tensor, dk.tensor, dv.tensor, dbias.tensor, dsink.tensor},
           in.options, [&](size_t bytes) { return in.workspace(bytes); });
}

nb::object gradients(const Torch& torch, nb::handle q, nb::handle k, nb::handle v, nb::handle extras,
                     const nb::tuple& options, const nb::tuple& execution, nb::handle out, nb::handle lse,
                     nb::handle dout, nb::handle dlse, const nb::tuple& wanted) {
  Inputs in(torch, q, k, v, extras, options, execution);
  const auto want = [&](Py_ssize_t n) { return is_true(item(wanted, n)); };
  Gradients g;
  differentiate(torch, in, out, lse, dout, dlse, {want(0), want(1), want(2), want(3), want(4)}, g);
  return nb::make_tuple(g.of[0].tensor, g.of[1].tensor, g.of[2].tensor, g.of[3].tensor, g.of[4].tensor);
}

// The gradients of a node that autograd.py recorded, in the order of its arguments. None if backward needs the steps of
// call.py before or after it.
nb::object gradients_of_node(const Torch& torch, nb::handle node, nb::handle dout, nb::handle dlse) {
  const nb::tuple options = nb::borrow<nb::tuple>(node.attr(torch.options));
  const nb::tuple needed = nb::borrow<nb::tuple>(node.attr(torch.needs_input_grad));
  const bool has_extras = needed.size() != 4;
  const auto want = [&](Py_ssize_t n) { return is_true(item(needed, n)); };
  if (dout.is_none() || (has_extras && want(4))) return nb::none();
  const nb::tuple values = nb::borrow<nb::tuple>(item(options, 0));
  const bool packed = std::string_view(nb::cast<const char*>(item(values, 0))) == "thd";
  if (packed && !is_true(nb::object(dout.attr(torch.is_cuda)))) return nb::none();
  // From here on there is no way back to call.py: under activation checkpointing a node can read its tensors only once.
  const nb::tuple saved = nb::borrow<nb::tuple>(node.attr(torch.saved_tensors));
  const nb::object extras =
      has_extras ? nb::steal(PyTuple_GetSlice(saved.ptr(), 5, static_cast<Py_ssize_t>(saved.size()))) : nb::none();
  Inputs in(torch, item(saved, 0), item(saved, 1), item(saved, 2), extras, values,
            nb::borrow<nb::tuple>(item(options, 1)));
  Gradients g;
  differentiate(torch, in, item(saved, 3), item(saved, 4), dout, dlse,
                {want(0), want(1), want(2), false, has_extras && want(5)}, g);
  if (!has_extras) return nb::make_tuple(g.of[0].tensor, g.of[1].tensor, g.of[2].tensor, nb::none());
  return nb::make_tuple(g.of[0].tensor, g.of[1].tensor, g.of[2].tensor, nb::none(), nb::none(), g.of[4].tensor);
}

// Whether this is an instance of exactly int, not of a subclass, in this range.
bool is_whole(nb::handle object, int64_t least, int64_t most) {
  if (!PyLong_CheckExact(object.ptr())) return false;
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow == 0 && value >= least && value <= most;
}

bool is_flag(nb::handle object) { return PyBool_Check(object.ptr()); }
bool is_float(nb::handle object) { return PyFloat_CheckExact(object.ptr()); }

bool is_tensor(const Torch& torch, nb::handle object) {
  return object.type().is(torch.tensor) || object.type().is(torch.parameter);
}

bool is_plain_eager(const Torch& torch) {
  for (Py_ssize_t n = 0; n < static_cast<Py_ssize_t>(torch.inactive.size()); ++n)
    if (PyObject_IsTrue(nb::object(item(torch.inactive, n)()).ptr()) != 0) return false;
  return nb::cast<int64_t>(torch.forward_mode.attr(torch.current_level)) < 0;
}

bool is_recorded(const Torch& torch, nb::handle q, nb::handle k, nb::handle v) {
  const auto requires_grad = [&](nb::handle tensor) {
    return !tensor.is_none() && is_true(nb::object(tensor.attr(torch.requires_grad)));
  };
  return is_true(nb::object(torch.records_graphs())) && (requires_grad(q) || requires_grad(k) || requires_grad(v));
}

// Makes a call without dropout and optional arrays in plain eager mode, if all arguments have the expected types: one
// function for all the steps of _torch.run. Returns None if _torch.run has to look closer, or has to fail again with
// the caller's names of the arguments. apply makes a node of autograd.py.
nb::object plain_call(const Torch& torch, nb::handle q, nb::handle k, nb::handle v, nb::handle layout, nb::handle scale,
                      nb::handle causal, nb::handle top_left, nb::handle window, nb::handle softcap,
                      nb::handle dropout_p, nb::handle max_seqlen_q, nb::handle max_seqlen_k, nb::handle deterministic,
                      nb::handle num_threads, nb::handle return_lse, nb::handle apply) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLargestExtent = std::numeric_limits<int32_t>::max();
  const bool tensors =
      is_tensor(torch, q) && (k.is_none() || is_tensor(torch, k)) && (v.is_none() || is_tensor(torch, v));
  if (!tensors || !PyTuple_CheckExact(window.ptr()) || PyTuple_Size(window.ptr()) != 2) return nb::none();
  const nb::handle left = PyTuple_GetItem(window.ptr(), 0), right = PyTuple_GetItem(window.ptr(), 1);
  const bool options = PyUnicode_CheckExact(layout.ptr()) && (scale.is_none() || is_float(scale)) && is_flag(causal) &&
                       is_flag(top_left) && is_whole(left, -1, kLargest) && is_whole(right, -1, kLargest) &&
                       is_float(softcap) && PyFloat_AsDouble(softcap.ptr()) >= 0 && is_float(dropout_p) &&
                       PyFloat_AsDouble(dropout_p.ptr()) == 0 && is_whole(max_seqlen_q, 0, kLargestExtent) &&
                       is_whole(max_seqlen_k, 0, kLargestExtent) && is_flag(deterministic) &&
                       is_whole(num_threads, 0, kLargestExtent) && is_flag(return_lse);
  if (!options || !is_plain_eager(torch)) return nb::none();
  const nb::object reproducible =
      is_true(deterministic) ? nb::borrow(deterministic) : nb::object(torch.deterministic());
  const nb::tuple values = nb::make_tuple(layout, scale, causal, top_left, left, right, softcap, dropout_p, 0, 0,
                                          max_seqlen_q, max_seqlen_k);
  const nb::tuple execution = nb::make_tuple(num_threads, reproducible);
  const bool recorded = is_recorded(torch, q, k, v), want_lse = is_true(return_lse);
  Results computed;
  try {
    computed = attend(torch, q, k, v, nb::none(), values, execution, recorded || want_lse);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;  // an interrupt, for one
    return nb::none();
  } catch (const std::exception&) {
    return nb::none();
  }
  if (recorded)
    return apply(q, k, v, nb::make_tuple(nb::make_tuple(values, execution), nb::none(), computed.out, computed.lse));
  return want_lse ? nb::object(nb::make_tuple(computed.out, computed.lse)) : computed.out;
}

}  // namespace

void bind_torch_calls(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Torch>(module, "Torch")
      .def(
          "__init__",
          [](Torch* self, nb::object tensor, nb::object parameter, nb::object f16, nb::object bf16, nb::object f32,
             nb::object f64, nb::object u8, nb::object empty_cpu, nb::object empty_cuda, nb::object current_device,
             nb::object current_stream, nb::object num_threads, nb::object new_like, nb::object clear_unused_rows,
             nb::object deterministic, nb::object records_graphs, nb::tuple inactive, nb::object forward_mode) {
            new (self) Torch{tensor,
                             parameter,
                             f16,
                             bf16,
                             f32,
                             f64,
                             u8,
                             empty_cpu,
                             empty_cuda,
                             current_device,
                             current_stream,
                             num_threads,
                             new_like,
                             clear_unused_rows,
                             deterministic,
                             records_graphs,
                             inactive,
                             forward_mode};
          },
          "tensor"_a, "parameter"_a, "f16"_a, "bf16"_a, "f32"_a, "f64"_a, "u8"_a, "empty_cpu"_a.none(),
          "empty_cuda"_a.none(), "current_device"_a, "current_stream"_a, "num_threads"_a, "new_like"_a,
          "clear_unused_rows"_a, "deterministic"_a, "records_graphs"_a, "inactive"_a, "forward_mode"_a)
      .def("forward", results, "q"_a, "k"_a.none(), "v"_a.none(), "extras"_a.none(), "options"_a, "execution"_a,
           "want_lse"_a)
      .def("backward", gradients, "q"_a, "k"_a.none(), "v"_a.none(), "extras"_a.none(), "options"_a, "execution"_a,
           "out"_a, "lse"_a, "dout"_a, "dlse"_a.none(), "wanted"_a)
      .def("plain_call", plain_call, "q"_a.none(), "k"_a.none(), "v"_a.none(), "layout"_a.none(), "scale"_a.none(),
           "causal"_a.none(), "top_left"_a.none(), "window"_a.none(), "softcap"_a.none(), "dropout_p"_a.none(),
           "max_seqlen_q"_a.none(), "max_seqlen_k"_a.none(), "deterministic"_a.none(), "num_threads"_a.none(),
           "return_lse"_a.none(), "apply"_a)
      .def("backward_of_node", gradients_of_node, "node"_a, "dout"_a.none(), "dlse"_a.none());
}

}  // namespace cuflash::python
