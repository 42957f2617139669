// Memory of a call: its tensors and its workspace, compared with attention that stores its score matrices.
//
// --json FILE writes one object, whose first members are those of cli/io/io.cpp:
//   {"format": "cuflash-memory-1", ..., "device": "cpu" | "sm_90a",
//    "results": [{"direction": "forward" | "backward", "len_q", "len_k",
//                 "inputs", "outputs", "workspace", "naive_matrices"}]}      // bytes
#include <iostream>

#include "backend/backend.h"
#include "cli/arguments/exit.h"
#include "cli/io/grid.h"
#include "cli/io/memory_profile.h"
#include "cli/terminal/table.h"
#include "cuda/launch/tile_counts.h"
#include "cuda/plan/plan.h"
#include "files/text/json.h"
#include "problem/describe.h"
#include "reference/naive.h"

namespace cuflash::cli {

namespace {

template <class T>
double bytes_of(const T& tensor) {
  double bytes = tensor ? static_cast<double>(size_of(tensor.dtype)) : 0;
  for (int32_t d = 0; d < tensor.rank; ++d) bytes *= static_cast<double>(tensor.shape[d]);
  return bytes;
}

size_t cuda_workspace(const ForwardProblem& problem, const Execution& execution, const cuda::Arch& arch) {
  return cuda::TileCounts::bytes(execution) + cuda::plan_forward(problem, arch).workspace.size;
}
size_t cuda_workspace(const BackwardProblem& problem, const Execution&, const cuda::Arch& arch) {
  return cuda::plan_backward(problem, arch, cuda::Reproducible::no).workspace.size;
}

template <class Tensors>
double workspace_of(const ExplainOptions& options, const Attention& attention, const Tensors& tensors) {
  Snapshot copies;
  const Memory memory{options.arch.empty() ? -1 : 0};
  const auto problem = describe(detail::to_c(attention), detail::to_c(tensors), memory, copies);
  return static_cast<double>(options.arch.empty()
                                 ? workspace_size(problem, options.execution)
                                 : cuda_workspace(problem, options.execution, cuda::arch_named(options.arch)));
}

}  // namespace

MemoryProfile memory_profile(const ExplainOptions& options) {
  const Sketch sketch(options);
  const Attention& a = sketch.attention;
  MemoryProfile profile;
  profile.inputs = bytes_of(a.q) + bytes_of(a.k) + bytes_of(a.v);
  if (options.backward) {
    const BackwardTensors& t = sketch.tensors;
    profile.inputs += bytes_of(t.o) + bytes_of(t.lse) + bytes_of(t.dout);
    profile.outputs = bytes_of(t.dq) + bytes_of(t.dk) + bytes_of(t.dv);
    profile.workspace = workspace_of(options, a, t);
    profile.naive_matrices = static_cast<double>(reference::naive_backward_bytes(a));
  } else {
    profile.outputs = bytes_of(sketch.outputs.o) + bytes_of(sketch.outputs.lse);
    profile.workspace = workspace_of(options, a, sketch.outputs);
    profile.naive_matrices = static_cast<double>(reference::naive_forward_bytes(a));
  }
  // Matrices have the type of the tensors on a GPU, and the types of reference/naive.cpp on the CPU.
  if (!options.arch.empty())
    profile.naive_matrices *=
        static_cast<double>(size_of(options.dtype)) / static_cast<double>(size_of(state_type(options.dtype)));
  return profile;
}

int run_memory(const GridOptions& options) {
  const std::string device =
      options.problem.arch.empty() ? "cpu" : cuda::target_of(cuda::arch_named(options.problem.arch));
  std::cout << words_of(options) << "; on " << device << "\n"
            << "extra: in addition to inputs and outputs, from the workspace query; naive: its score matrices, "
            << (device == "cpu" ? "f32 (f64 for f64)" : "in the type of the tensors") << ";\n"
            << "less: of all memory together\n";
  std::string json;
  for (const bool backward : {false, true}) {
    const char* direction = backward ? "backward" : "forward";
    Table table{{"length", "inputs", "outputs", "extra", "naive extra", "naive/extra", "less"}, {}};
    for (const GridPoint& point : points_of(options)) {
      const ExplainOptions& o = backward ? point.backward : point.forward;
      const MemoryProfile m = memory_profile(o);
      table.rows.push_back({length_text(o.seq_q, o.seq_k.value_or(o.seq_q)), bytes_text(m.inputs),
                            bytes_text(m.outputs), bytes_text(m.workspace), bytes_text(m.naive_matrices),
                            m.workspace > 0 ? fixed(m.naive_matrices / m.workspace, 1) + "x" : "-",
                            fixed(100 * m.saved(), 1) + "%"});
      json +=
          join(json.empty() ? "\n" : ",\n", "{\"direction\": ", files::json_string(direction), ", \"len_q\": ", o.seq_q,
               ", \"len_k\": ", o.seq_k.value_or(o.seq_q), ", \"inputs\": ", fixed(m.inputs, 0),
               ", \"outputs\": ", fixed(m.outputs, 0), ", \"workspace\": ", fixed(m.workspace, 0),
               ", \"naive_matrices\": ", fixed(m.naive_matrices, 0), "}");
    }
    std::cout << "\n" << direction << "\n" << table.text();
  }
  write_json(options, join("{\"format\": \"cuflash-memory-1\", ", json_of(options),
                           ", \"device\": ", files::json_string(device), ", \"results\": [", json, "]}\n"));
  return kExitOk;
}

}  // namespace cuflash::cli
