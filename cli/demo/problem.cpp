#include "check/cases/random.h"
#include "cli/demo/demo.h"
#include "dtype.h"

namespace cuflash::cli {

using files::Arrangement, files::HostTensor, files::zeros;

namespace {

HostTensor normal(const std::vector<int64_t>& shape, DType type, uint64_t seed) {
  HostTensor tensor = zeros(shape, type, Arrangement::plain);
  check::Random random(seed);
  const int64_t count = static_cast<int64_t>(tensor.bytes.size()) / size_of(type);
  for (int64_t n = 0; n < count; ++n) {
    const double value = random.normal();
    store_row(tensor.bytes.data(), type, n, 1, &value);
  }
  return tensor;
}

}  // namespace

DemoProblem::DemoProblem(const DemoShape& s, DType type)
    : q_(normal({s.batch, s.heads_q, s.seq, s.dim}, type, 1)),
      k_(normal({s.batch, s.heads_k, s.seq, s.dim}, type, 2)),
      v_(normal({s.batch, s.heads_k, s.seq, s.dim}, type, 3)),
      dout_(normal({s.batch, s.heads_q, s.seq, s.dim}, type, 4)),
      o_(zeros(q_.file_shape, type, Arrangement::plain)),
      lse_(zeros({s.batch, s.heads_q, s.seq}, state_type(type), Arrangement::plain)),
      dq_(zeros(q_.file_shape, type, Arrangement::plain)),
      dk_(zeros(k_.file_shape, type, Arrangement::plain)),
      dv_(zeros(v_.file_shape, type, Arrangement::plain)),
      attention_{.q = q_.view, .k = k_.view, .v = v_.view, .causal = true} {}

BackwardTensors DemoProblem::gradients() const {
  return {.o = o_.view, .lse = lse_.view, .dout = dout_.view, .dq = dq_.view, .dk = dk_.view, .dv = dv_.view};
}

std::vector<double> DemoProblem::values(const HostTensor& tensor) {
  std::vector<double> row(tensor.bytes.size() / static_cast<size_t>(size_of(tensor.view.dtype)));
  load_row(tensor.bytes.data(), tensor.view.dtype, 0, static_cast<int64_t>(row.size()), row.data());
  return row;
}

}  // namespace cuflash::cli
