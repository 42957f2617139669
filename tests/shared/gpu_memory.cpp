#include "tests/shared/gpu_memory.h"

#include <algorithm>
#include <utility>

namespace cuflash::test {
namespace {

using cuda::driver;

const cuda::DeviceState& first() { return cuda::device(0); }
cuda::CUdeviceptr address(const void* data) { return reinterpret_cast<cuda::CUdeviceptr>(data); }

int64_t count_of(const ConstTensor& t) {
  int64_t count = 1;
  for (int32_t d = 0; d < t.rank; ++d) count *= t.shape[static_cast<size_t>(d)];
  return count;
}

}  // namespace

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  const cuda::DeviceGuard guard(first());
  cuda::CUdeviceptr block = 0;
  cuda::check(driver().cuMemAlloc(&block, std::max<size_t>(bytes, 1)), "cuMemAlloc");
  data_ = reinterpret_cast<void*>(block);
  write(std::vector<unsigned char>(bytes, 0xff).data(), bytes);
}
DeviceBuffer::~DeviceBuffer() {
  if (data_) driver().cuMemFree(address(data_));
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceBuffer::write(const void* host, size_t bytes) const {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuMemcpyHtoDAsync(address(data_), host, bytes, nullptr), "cuMemcpyHtoDAsync");
  cuda::check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
}
std::vector<std::byte> DeviceBuffer::read() const {
  const cuda::DeviceGuard guard(first());
  std::vector<std::byte> host(bytes_);
  cuda::check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
  cuda::check(driver().cuMemcpyDtoHAsync(host.data(), address(data_), bytes_, nullptr), "cuMemcpyDtoHAsync");
  cuda::check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
  return host;
}

DeviceTensor poisoned(const ConstTensor& layout) {
  DeviceBuffer memory(static_cast<size_t>(count_of(layout) * size_of(layout.dtype)));
  const Tensor view{memory.data(), layout.dtype, layout.rank, layout.shape, layout.stride};
  return {std::move(memory), view};
}
DeviceTensor copy_of(const ConstTensor& host) {
  DeviceTensor t = poisoned(host);
  t.memory.write(host.data, t.memory.bytes());
  return t;
}
DeviceTensor copy_of(const std::vector<int32_t>& lengths) {
  return copy_of(ConstTensor(contiguous(lengths.data(), lengths.size())));
}

Stream::Stream() {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuStreamCreate(&handle_, 1), "cuStreamCreate");  // 1: does not wait for the legacy stream
}
Stream::~Stream() { driver().cuStreamDestroy(handle_); }
void Stream::wait() const {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuStreamSynchronize(handle_), "cuStreamSynchronize");
}

Graph::~Graph() {
  if (executable_) driver().cuGraphExecDestroy(executable_);
  if (graph_) driver().cuGraphDestroy(graph_);
}
// Global: anything that would break a capture anywhere in the process breaks this one.
void Graph::begin() {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuStreamBeginCapture(stream_.handle(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              "cuStreamBeginCapture");
}
void Graph::end() {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuStreamEndCapture(stream_.handle(), &graph_), "cuStreamEndCapture");
  cuda::check(driver().cuGraphInstantiate(&executable_, graph_, 0), "cuGraphInstantiate");
}
void Graph::replay() const {
  const cuda::DeviceGuard guard(first());
  cuda::check(driver().cuGraphLaunch(executable_, stream_.handle()), "cuGraphLaunch");
  stream_.wait();
}

static Tensor lse_of(const ConstTensor& q) {
  const DType type = state_type(q.dtype);
  if (q.rank == 3) return contiguous<void>(nullptr, type, q.shape[1], q.shape[0]);
  return contiguous<void>(nullptr, type, q.shape[0], q.shape[1], q.shape[2]);
}

DeviceProblem::DeviceProblem(const Inputs& in, const Stream& stream)
    : q(copy_of(in.attention.q)),
      k(copy_of(in.attention.k)),
      v(copy_of(in.attention.v)),
      dout(copy_of(in.dout.view())),
      o(poisoned(in.dout.view())),
      lse(poisoned(lse_of(in.attention.q))),
      dq(poisoned(in.attention.q)),
      dk(poisoned(in.attention.k)),
      dv(poisoned(in.attention.v)),
      attention(in.attention) {
  attention.q = q.view, attention.k = k.view, attention.v = v.view;
  attention.cu_seqlens_q = attention.cu_seqlens_k = attention.seqlens_q = attention.seqlens_k = {};  // set by the tests
  execution = {.deterministic = true, .stream = stream.handle()};
}

BackwardTensors DeviceProblem::tensors() const {
  BackwardTensors t{.o = o.view, .lse = lse.view, .dout = dout.view};
  t.dq = dq.view, t.dk = dk.view, t.dv = dv.view;
  return t;
}

void DeviceProblem::take_workspace() {
  workspace =
      DeviceBuffer(std::max(workspace_size(attention, tensors(), execution),
                            workspace_size(attention, ForwardOutputs{.o = o.view, .lse = lse.view}, execution)));
  execution.workspace = workspace.data(), execution.workspace_size = workspace.bytes();
}

std::vector<std::vector<std::byte>> DeviceProblem::results() const {
  return {o.memory.read(), lse.memory.read(), dq.memory.read(), dk.memory.read(), dv.memory.read()};
}

}  // namespace cuflash::test
