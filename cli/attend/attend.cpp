// Attention on files of tensors: reads all inputs, computes forward and, if gradients are wanted, backward, and writes.
#include <array>
#include <filesystem>
#include <iostream>
#include <utility>

#include "check/memory/device.h"
#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "dtype.h"
#include "files/tensors/array_file.h"
#include "files/tensors/tensor_file.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

using namespace files;

struct Inputs {
  HostTensor q, k, v, dout, dlse;
  HostTensor alibi, bias, mask, sink;
  HostTensor seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k;
};

struct Results {
  HostTensor o, lse, dq, dk, dv, dbias, dsink;
};

bool packed(const AttendOptions& options) { return !options.cu_seqlens_q.empty() || !options.cu_seqlens_k.empty(); }

bool wants_gradients(const AttendOptions& options) {
  return !(options.dq + options.dk + options.dv + options.dbias + options.dsink).empty();
}

void require_companion(const char* flag, const std::string& value, const char* needed, const std::string& companion) {
  if (!value.empty() && companion.empty()) throw UsageError(join(flag, " needs ", needed));
}

void require_consistent(const AttendOptions& options) {
  if ((options.out + options.lse).empty() && !wants_gradients(options)) {
    throw UsageError(
        "no output was requested; name at least one of --out, --lse, --dq, --dk, --dv, --dbias and --dsink");
  }
  if (!options.grad_out.empty() && !wants_gradients(options)) {
    throw UsageError(
        "--grad-out was given, but no gradient was requested; name at least one of --dq, --dk, --dv, --dbias and "
        "--dsink");
  }
  for (const auto& [flag, path] : {std::pair{"--dq", &options.dq},
                                   {"--dk", &options.dk},
                                   {"--dv", &options.dv},
                                   {"--dbias", &options.dbias},
                                   {"--dsink", &options.dsink}}) {
    require_companion(flag, *path, "--grad-out, the gradient of the output", options.grad_out);
  }
  require_companion("--grad-lse", options.grad_lse, "--grad-out (an array of zeros where the output has no gradient)",
                    options.grad_out);
  require_companion("--dbias", options.dbias, "--bias", options.bias);
  require_companion("--dsink", options.dsink, "--sink", options.sink);
  require_companion("--cu-seqlens-q", options.cu_seqlens_q, "--cu-seqlens-k", options.cu_seqlens_k);
  require_companion("--cu-seqlens-k", options.cu_seqlens_k, "--cu-seqlens-q", options.cu_seqlens_q);
}

struct Output {
  const char* flag;
  const std::string* text;
  const HostTensor* tensor;
};
// The outputs that the user requested.
std::vector<Output> outputs_of(const AttendOptions& options, const Results& results) {
  std::vector<Output> outputs{{"--out", &options.out, &results.o},        {"--lse", &options.lse, &results.lse},
                              {"--dq", &options.dq, &results.dq},         {"--dk", &options.dk, &results.dk},
                              {"--dv", &options.dv, &results.dv},         {"--dbias", &options.dbias, &results.dbias},
                              {"--dsink", &options.dsink, &results.dsink}};
  std::erase_if(outputs, [](const Output& output) { return output.text->empty(); });
  return outputs;
}

struct Input {
  const char* flag;
  const std::string* text;
};
std::array<Input, 13> inputs_of(const AttendOptions& o) {
  return {{{"--q", &o.q},
           {"--k", &o.k},
           {"--v", &o.v},
           {"--grad-out", &o.grad_out},
           {"--grad-lse", &o.grad_lse},
           {"--alibi", &o.alibi},
           {"--bias", &o.bias},
           {"--mask", &o.mask},
           {"--sink", &o.sink},
           {"--seqlens-q", &o.seqlens_q},
           {"--seqlens-k", &o.seqlens_k},
           {"--cu-seqlens-q", &o.cu_seqlens_q},
           {"--cu-seqlens-k", &o.cu_seqlens_k}}};
}

// Compares files, not their names: a file may have several names, and links lead to it.
void require_not_an_input(const AttendOptions& options, const char* flag, const ArrayPlace& output) {
  for (const Input& input : inputs_of(options)) {
    std::error_code missing;
    if (!input.text->empty() && std::filesystem::equivalent(array_place(*input.text).path, output.path, missing)) {
      throw UsageError(join(flag, " ", in_quotes(text_of(output)), ": ", input.flag, " is read from this file, which ",
                            "would be overwritten; name another file"));
    }
  }
}

void require_places(const AttendOptions& options) {
  std::vector<ArrayPlace> places;
  for (const Output& output : outputs_of(options, {})) {
    places.push_back(output_place(output.flag, *output.text));
    require_not_an_input(options, output.flag, places.back());
  }
  require_writable(places);
}

void require_rank(const char* flag, const HostTensor& tensor, const AttendOptions& options) {
  const bool is_packed = packed(options);
  if (tensor.view.rank == (is_packed ? 3 : 4)) return;
  const char* dense_shape = options.layout == Layout::bshd ? "[B, S, H, D]" : "[B, H, S, D]";
  throw UsageError(join(flag, ": its shape is ", shape_text(tensor.file_shape), ", but it must be ",
                        is_packed
                            ? "[T, H, D], because --cu-seqlens-q and --cu-seqlens-k were given"
                            : join(dense_shape, " (or [T, H, D] with --cu-seqlens-q and --cu-seqlens-k); reshape it, ",
                                   "with 1 for missing dimensions")));
}

Arrangement arrangement_of(const AttendOptions& options) {
  return options.layout == Layout::bshd ? Arrangement::heads_third : Arrangement::plain;
}

Inputs load_inputs(const AttendOptions& options) {
  const Arrangement rows = arrangement_of(options);
  const Array q = read_array("--q", options.q);
  const DType type = options.dtype ? *options.dtype : float_type_of("--q", options.q, q);
  Inputs in;
  in.q = to_tensor("--q", options.q, q, type, rows);
  in.k = load_values("--k", options.k, type, rows);
  in.v = load_values("--v", options.v, type, rows);
  in.dout = load_values("--grad-out", options.grad_out, type, rows);
  in.dlse = load_values("--grad-lse", options.grad_lse, state_type(type), Arrangement::plain);
  in.alibi = load_values("--alibi", options.alibi, DType::f32, Arrangement::plain);
  in.bias = load_values("--bias", options.bias, state_type(type), Arrangement::leading_ones);
  in.sink = load_values("--sink", options.sink, state_type(type), Arrangement::plain);
  in.mask = load_mask("--mask", options.mask);
  in.seqlens_q = load_lengths("--seqlens-q", options.seqlens_q);
  in.seqlens_k = load_lengths("--seqlens-k", options.seqlens_k);
  in.cu_seqlens_q = load_lengths("--cu-seqlens-q", options.cu_seqlens_q);
  in.cu_seqlens_k = load_lengths("--cu-seqlens-k", options.cu_seqlens_k);
  require_rank("--q", in.q, options);
  require_rank("--k", in.k, options);
  require_rank("--v", in.v, options);
  return in;
}

Attention attention_of(const AttendOptions& options, const Inputs& in) {
  Attention attention = options.attention;
  attention.q = in.q.view, attention.k = in.k.view, attention.v = in.v.view;
  attention.alibi_slopes = in.alibi.view, attention.bias = in.bias.view;
  attention.mask = in.mask.view, attention.sink = in.sink.view;
  attention.seqlens_q = in.seqlens_q.view, attention.seqlens_k = in.seqlens_k.view;
  attention.cu_seqlens_q = in.cu_seqlens_q.view, attention.cu_seqlens_k = in.cu_seqlens_k.view;
  return attention;
}

// The tensors are in host memory; for CUDA they are copied to the device and back.
Execution execution_of(const AttendOptions& options) {
  Execution execution = options.execution;
  execution.check_lengths = true;
  return execution;
}

Results forward(const AttendOptions& options, const Attention& attention, const Inputs& in) {
  const DType type = attention.q.dtype;
  std::vector<int64_t> o_shape = in.q.file_shape;
  o_shape.back() = in.v.file_shape.back();
  const auto& q = attention.q.shape;
  const std::vector<int64_t> lse_shape = packed(options) ? std::vector{q[1], q[0]} : std::vector{q[0], q[1], q[2]};
  Results out;
  out.o = zeros(o_shape, type, arrangement_of(options));
  out.lse = zeros(lse_shape, state_type(type), Arrangement::plain);
  check::forward(options.execution.device, attention, {out.o.view, out.lse.view}, execution_of(options));
  return out;
}

void backward(const AttendOptions& options, const Attention& attention, const Inputs& in, Results& out) {
  const auto zeros_like = [](const std::string& path, const HostTensor& input, Arrangement arrangement) {
    return path.empty() ? HostTensor{} : zeros(input.file_shape, input.view.dtype, arrangement);
  };
  const Arrangement rows = arrangement_of(options);
  out.dq = zeros_like(options.dq, in.q, rows);
  out.dk = zeros_like(options.dk, in.k, rows);
  out.dv = zeros_like(options.dv, in.v, rows);
  out.dbias = zeros_like(options.dbias, in.bias, Arrangement::leading_ones);
  out.dsink = zeros_like(options.dsink, in.sink, Arrangement::plain);
  check::backward(options.execution.device, attention,
                  {.o = out.o.view,
                   .lse = out.lse.view,
                   .dout = in.dout.view,
                   .dlse = in.dlse.view,
                   .dq = out.dq.view,
                   .dk = out.dk.view,
                   .dv = out.dv.view,
                   .dbias = out.dbias.view,
                   .dsink = out.dsink.view},
                  execution_of(options));
}

void write(const AttendOptions& options, const Results& results) {
  std::vector<ArrayOutput> arrays;
  for (const Output& output : outputs_of(options, results)) {
    ArrayPlace place = output_place(output.flag, *output.text);
    Array array = to_array(*output.tensor, format_of(place.path));
    arrays.push_back({std::move(place.path), std::move(array), std::move(place.tensor)});
  }
  write_arrays(arrays);
  for (const auto& [path, array, tensor] : arrays) {
    std::cout << text_of({path, tensor}) << " " << name_of(array.type) << " " << shape_text(array.shape) << "\n";
  }
}

}  // namespace

int run_attend(const AttendOptions& options) {
  require_consistent(options);
  require_places(options);
  const Inputs in = load_inputs(options);
  const Attention attention = attention_of(options, in);
  Results results = forward(options, attention, in);
  if (wants_gradients(options)) backward(options, attention, in, results);
  write(options, results);
  return kExitOk;
}

}  // namespace cuflash::cli
