// The CUDA backend without its kernels, on fake GPUs: see tests/cuda/fake_gpu.

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "check/run/run.h"
#include "check/run/sweep.h"
#include "cli/bench/grid.h"
#include "cli/tune/trial.h"
#include "cuda/driver/memory.h"
#include "cuda/jit/program.h"
#include "cuda/plan/plan.h"
#include "kv_params.h"
#include "tests/cuda/fake_gpu/emulate.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"
#include "tests/properties/property.h"
#include "tests/shared/counted_allocations.h"
#include "tests/shared/gpu_memory.h"

namespace cuflash::test {
namespace {

class FakeGpus : public ::testing::Test {
 protected:
  FakeGpus() : gpus(loaded_fake_gpu()) { gpus.on_launch = nullptr; }

  FakeGpu& gpus;
};

int current_device() {
  cuda::CUdevice device = -1;
  cuda::driver().cuCtxGetDevice(&device);
  return device;
}

// Each tensor must have its own map: that of an earlier call, or of another tensor of the same layout, is wrong.
void expect_map(const TensorMap& map, const RowsView& rows, int dim, uint64_t element_bytes = 2) {
  FakeTensorMap content;
  std::memcpy(&content, &map, sizeof content);
  EXPECT_EQ(content.address, rows.data);
  EXPECT_EQ(content.extents[0], static_cast<uint64_t>(dim));
  const int64 strides[] = {rows.row_stride, rows.head_stride, rows.batch_stride};
  for (int n = 0; n < 3; ++n) {
    if (strides[n] == 0) continue;
    EXPECT_EQ(content.strides[n], static_cast<uint64_t>(strides[n]) * element_bytes) << n;
  }
}
bool is_given(const TensorMap& map) {
  FakeTensorMap content;
  std::memcpy(&content, &map, sizeof content);
  return content.address != nullptr;
}
// The bits of the summary, bytes of 8 keys.
void expect_mask_map(const TensorMap& map, const MaskSummary& summary) {
  FakeTensorMap content;
  std::memcpy(&content, &map, sizeof content);
  EXPECT_EQ(content.address, summary.bits);
  EXPECT_EQ(content.extents[0], static_cast<uint64_t>(summary.spans * kMaskSpanWords * 4));
  EXPECT_EQ(content.extents[1], static_cast<uint64_t>(summary.rows));
  if (summary.rows == 1) return;
  EXPECT_EQ(content.strides[0], static_cast<uint64_t>(summary.spans * kMaskSpanWords * 4));
}
void expect_maps(const Sm90ForwardParams& p) {
  const AttentionParams& a = p.forward.attention;
  expect_map(p.q, a.q, a.dim_qk), expect_map(p.k, a.k, a.dim_qk), expect_map(p.v, a.v, a.dim_v);
  if (p.store_o_by_tma != 0) expect_map(p.o, p.forward.o, a.dim_v);
  if (is_given(p.bias)) expect_map(p.bias, a.bias, a.len_k);
  if (is_given(p.mask)) expect_mask_map(p.mask, a.summary);
}
// Expects as many rows of statistics as the prepare kernel writes and the others read; a packed tensor has one more
// tile per sequence.
void expect_stats(const Sm90BackwardParams& p) {
  FakeTensorMap content;
  std::memcpy(&content, &p.row_stats, sizeof content);
  const AttentionParams& a = p.backward.attention;
  BackwardConfig shared{};
  shared.element = Element::bf16, shared.tile_q = kWarpgroupRows;
  const int64 tiles =
      a.cu_q ? p.backward.packed_tiles : int64{a.batch} * ((a.len_q + kWarpgroupRows - 1) / kWarpgroupRows);
  EXPECT_EQ(content.address, p.backward.row_stats);
  EXPECT_EQ(content.extents[0], static_cast<uint64_t>(row_stats_size(shared)));
  EXPECT_EQ(content.extents[1], static_cast<uint64_t>(tiles * a.heads_q));
  EXPECT_EQ(content.strides[0], static_cast<uint64_t>(row_stats_bytes(shared)));
}
bool runs(const FakeLaunch& launch, const char* kernel) { return std::strstr(launch.program, kernel) != nullptr; }
// The main kernel and the kernels for dQ or dBias alone take the same params.
bool takes_backward_maps(const FakeLaunch& launch) {
  return runs(launch, "sm90_backward<") || runs(launch, "sm90_dq<") || runs(launch, "sm90_dbias<");
}
const Sm90BackwardParams& backward_maps(const FakeLaunch& launch) {
  const auto& p = *static_cast<const Sm90BackwardParams*>(launch.params);
  const AttentionParams& a = p.backward.attention;
  const bool main = runs(launch, "sm90_backward<");
  expect_map(p.q, a.q, a.dim_qk), expect_map(p.dout, p.backward.dout, a.dim_v);
  expect_map(main ? p.k : p.dq_k, a.k, a.dim_qk), expect_map(main ? p.v : p.dq_v, a.v, a.dim_v);
  expect_stats(p);
  if (is_given(p.mask)) expect_mask_map(p.mask, a.summary);
  return p;
}

// A forward call with few queries runs the kernel over a KV cache, whose lengths are those of its keys.
ForwardParams forward_of_cache(const Sm90KvParams& p) {
  ForwardParams forward{p.cache.attention, p.cache.o, p.cache.lse};
  forward.attention.used_k = p.cache.cache.rows;
  EXPECT_EQ(p.cache.cache.rows, p.prologue.rows);
  EXPECT_EQ(p.cache.cache.entries, forward.attention.batch);
  expect_map(p.k, forward.attention.k, forward.attention.dim_qk);
  expect_map(p.v, forward.attention.v, forward.attention.dim_v);
  return forward;
}

// Memory, lengths, plans, params, mirrored memory and workspaces of random problems; only the kernel is emulated.
TEST_F(FakeGpus, RandomProblemsEqualTheOracle) {
  gpus.on_launch = [](const FakeLaunch& launch) {
    if (launch.params_size == sizeof(ForwardParams)) return emulate(*static_cast<const ForwardParams*>(launch.params));
    if (runs(launch, "summarize_mask<")) return emulate(*static_cast<const MaskSummaryParams*>(launch.params));
    if (runs(launch, "sm90_forward<")) {
      const auto& params = *static_cast<const Sm90ForwardParams*>(launch.params);
      expect_maps(params);
      return emulate(params.forward);
    }
    if (runs(launch, "sm90_kv<")) return emulate(forward_of_cache(*static_cast<const Sm90KvParams*>(launch.params)));
    if (runs(launch, "sm90_tile_list<") || runs(launch, "combine_splits<")) return;  // helpers of sm90_forward
    if (runs(launch, "mask_list<")) return;                                          // helper of the sm90 kernels
    if (takes_backward_maps(launch)) return emulate(backward_maps(launch).backward);
    ASSERT_EQ(launch.params_size, sizeof(BackwardParams));
    emulate(*static_cast<const BackwardParams*>(launch.params));
  };
  const check::Limits limits{.device = Device::cuda}, shorter{.work = 20'000, .device = Device::cuda};
  constexpr uint64_t kPlain = 16;  // one in so many, because they are long
  // Repeated with other settings, the first of the same problems will do.
  const bool repeated = std::getenv("CUFLASH_CUDA_KERNELS") || std::getenv("CUFLASH_CHECK_ELEMENTS_ONLY");
  const auto count = static_cast<uint64_t>(scaled(repeated ? 300 : 1000));
  for (uint64_t index = 0; index < count; ++index) {
    check::Choices choices = check::Choices::of_seed(test_seed(), index);
    check::Case c = index % kPlain == 0   ? check::draw_plain_case(choices, shorter)
                    : index % kPlain == 8 ? check::draw_plain_case_with_options(choices, shorter)
                                          : check::draw_case(choices, limits);
    c.tile_stats = false;
    ASSERT_EQ(check::run_case(c), "") << "case " << index << ": " << check::describe(c);
    ASSERT_FALSE(HasFailure()) << "case " << index << ": " << check::describe(c);
  }
}

// Writes beyond an output, and elements that are not written, show in the copy on the host.
TEST_F(FakeGpus, DamageOnTheDeviceIsFound) {
  const Inputs in = dense({.len_q = 5, .len_k = 5});
  Buffer o(in.dout.view(), 0, "o");
  gpus.on_launch = [](const FakeLaunch& launch) {
    const auto& params = *static_cast<const ForwardParams*>(launch.params);
    emulate(params);
    static_cast<float*>(params.o.data)[5 * 8] = 0;
  };
  check::forward(Device::cuda, in.attention, {.o = o.view()}, {});
  EXPECT_NE(o.damage().find("outside its elements"), std::string::npos) << o.damage();

  gpus.on_launch = nullptr;
  o.poison();
  check::forward(Device::cuda, in.attention, {.o = o.view()}, {});
  EXPECT_NE(o.unwritten(), "");
}

// TMA writes whole pieces of 16 bytes, and so beyond a row of 57 elements. Strides of a single row forbid no tensor map.
TEST_F(FakeGpus, OutputsOfOddRowsAreNotStoredByTma) {
  if (cuda::kernel_preference() != cuda::KernelPreference::best)
    GTEST_SKIP() << "CUFLASH_CUDA_KERNELS excludes kernels with tensor maps";
  static int launches = 0;
  gpus.on_launch = [](const FakeLaunch& launch) {
    ASSERT_EQ(launch.params_size, 0u);
    EXPECT_EQ(static_cast<const Sm90ForwardParams*>(launch.params)->store_o_by_tma, 0);
    ++launches;
  };
  cuda::CUdeviceptr memory = 0;
  const cuda::DeviceGuard first(cuda::device(0));
  cuda::check(cuda::driver().cuMemAlloc(&memory, 1 << 16), "cuMemAlloc");
  const auto row = [&](size_t offset, int64_t dim) {
    return bhsd(reinterpret_cast<uint16_t*>(memory + offset), DType::bf16, 1, 1, 1, dim);
  };
  flash_attention_forward({.q = row(0, 233), .k = row(1024, 233), .v = row(2048, 57)}, {.o = row(3072, 57)});
  cuda::driver().cuMemFree(memory);
  EXPECT_EQ(launches, 1);
}

// check/memory/mirror.h explains why compute-sanitizer needs this.
TEST_F(FakeGpus, InASeparateAllocationTheLastVectorOfARowIsPaddedWithNaN) {
  if (!std::getenv("CUFLASH_CHECK_ELEMENTS_ONLY")) GTEST_SKIP() << "CUFLASH_CHECK_ELEMENTS_ONLY is not set";
  constexpr int64_t kRows = 5, kDim = 7, kStride = 16;
  static int launches = 0;
  gpus.on_launch = [](const FakeLaunch& launch) {
    ASSERT_EQ(launch.params_size, sizeof(ForwardParams));
    const AttentionParams& a = static_cast<const ForwardParams*>(launch.params)->attention;
    const auto* rows = static_cast<const uint16_t*>(a.k.data);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(rows) % 16, 0u);
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(rows[row * kStride + kDim], 0xffff) << row;
      for (int64_t n = kDim + 1; row + 1 < kRows && n < kStride; ++n)
        EXPECT_EQ(rows[row * kStride + n], 0xffee) << row << ", " << n << ": this padding was written";
    }
    const auto on_device = [](const void* data) { return cuda::MemoryLookup::of_driver().of(data).on_cuda(); };
    const uint16_t* last = rows + (kRows - 1) * kStride;
    EXPECT_TRUE(on_device(last + kDim));
    EXPECT_FALSE(on_device(last + kDim + 1));
    ++launches;
  };
  Inputs in = dense({.len_q = 5, .len_k = kRows, .dim = kDim, .dtype = DType::bf16});
  Tensor layout = in.k.view();
  layout.stride = {kRows * kStride, kRows * kStride, kStride, 1};
  const Buffer k(layout, 0, "k");
  in.attention.k = k.view();
  Buffer o(in.dout.view(), 0, "o");
  check::forward(Device::cuda, in.attention, {.o = o.view()}, {});
  EXPECT_EQ(launches, 1);
}

// Tensors on the second device while the first is current, or none is.
TEST_F(FakeGpus, TheDeviceOfTheTensorsIsUsedAndTheCurrentOneStays) {
  static int launched_on = -1;
  gpus.on_launch = [](const FakeLaunch& launch) { launched_on = launch.device; };
  cuda::CUdeviceptr memory = 0;
  {
    const cuda::DeviceGuard second(cuda::device(1));
    cuda::check(cuda::driver().cuMemAlloc(&memory, 1 << 16), "cuMemAlloc");
  }
  auto* data = reinterpret_cast<float*>(memory);
  const Attention a{.q = bhsd(data, 1, 1, 4, 8), .k = bhsd(data + 32, 1, 1, 4, 8), .v = bhsd(data + 64, 1, 1, 4, 8)};
  const ForwardOutputs outputs{.o = bhsd(data + 96, 1, 1, 4, 8)};
  EXPECT_EQ(current_device(), -1);
  flash_attention_forward(a, outputs);
  EXPECT_EQ(launched_on, 1);
  EXPECT_EQ(current_device(), -1);
  {
    const cuda::DeviceGuard first(cuda::device(0));
    launched_on = -1;
    flash_attention_forward(a, outputs);
    EXPECT_EQ(launched_on, 1);
    EXPECT_EQ(current_device(), 0);

    const Stream of_first;  // for a stream of another device the call reports CUDA's error
    EXPECT_THROW(flash_attention_forward(a, outputs, {.stream = of_first.handle()}), FlashAttentionError);
    EXPECT_EQ(current_device(), 0);
  }
  cuda::driver().cuMemFree(memory);
}

TEST_F(FakeGpus, TensorsOfTwoDevicesAreRefused) {
  cuda::CUdeviceptr other = 0;
  {
    const cuda::DeviceGuard second(cuda::device(1));
    cuda::check(cuda::driver().cuMemAlloc(&other, 1 << 16), "cuMemAlloc");
  }
  const Stream stream;
  DeviceProblem p(dense({.len_q = 4, .len_k = 4}), stream);
  p.attention.v.data = reinterpret_cast<void*>(other);
  try {
    p.forward();
    ADD_FAILURE() << "was accepted";
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), CUFLASH_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(),
                 "v: is in the memory of CUDA device 1, but q is in the memory of CUDA device 0; all tensors of a call "
                 "must be in the same memory");
  }
  cuda::driver().cuMemFree(other);
}

TEST_F(FakeGpus, MemoryOfThePoolGoesBack) {
  static int pool_blocks = -1;
  static const FakeGpu* state = &gpus;
  gpus.on_launch = [](const FakeLaunch&) { pool_blocks = state->pool_blocks; };
  const Stream stream;
  DeviceProblem p(dense({.len_q = 70, .len_k = 70}), stream);
  p.execution.workspace_from_pool = true;
  p.backward();
  EXPECT_EQ(pool_blocks, 1);
  EXPECT_EQ(gpus.pool_blocks, 0);
}

TEST_F(FakeGpus, TheCallersFunctionAllocatesOnceWhatTheQuerySays) {
  struct Asked {
    std::vector<size_t> sizes;
    void* memory;
  };
  const Stream stream;
  DeviceProblem p(dense({.len_q = 70, .len_k = 70}), stream);
  const size_t needed = workspace_size(p.attention, p.tensors(), p.execution);
  p.take_workspace();
  Asked asked{{}, std::exchange(p.execution.workspace, nullptr)};
  p.execution.workspace_size = 0;
  p.execution.allocate_context = &asked;
  p.execution.allocate = [](void* context, size_t bytes) {
    static_cast<Asked*>(context)->sizes.push_back(bytes);
    return static_cast<Asked*>(context)->memory;
  };
  p.backward();
  EXPECT_EQ(asked.sizes, std::vector<size_t>{needed});

  asked.memory = nullptr;
  const int launches = gpus.launches;
  try {
    p.backward();
    ADD_FAILURE() << "was accepted";
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), CUFLASH_OUT_OF_MEMORY);
  }
  EXPECT_EQ(gpus.launches, launches);
}

// The fake driver fails every operation that waits for a captured stream: a call has none.
TEST_F(FakeGpus, ACapturedCallWaitsForNothing) {
  const Stream stream;
  DeviceProblem p(dense({.len_q = 70, .len_k = 70}), stream);
  p.take_workspace();
  const int before = gpus.launches, blocks = gpus.blocks;
  Graph graph(stream);
  graph.begin();
  p.forward(), p.backward();
  graph.end();
  EXPECT_GE(gpus.launches - before, 2);
  EXPECT_EQ(gpus.blocks, blocks);
}

TEST_F(FakeGpus, ACachedCallAllocatesNothing) {
  const Stream stream;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DeviceProblem p(dense({.batch = 2, .len_q = 70, .len_k = 70, .dtype = dtype}), stream);
    const DeviceTensor used = copy_of({70, 3});
    p.attention.seqlens_k = used.view;
    p.take_workspace();
    p.forward(), p.backward();
    const int64_t before = allocations;
    const int launches = gpus.launches;
    p.forward(), p.backward();
    EXPECT_EQ(allocations, before) << name_of(dtype);
    EXPECT_GE(gpus.launches - launches, 2) << name_of(dtype);
  }
}

// All tensors of both problems have the same layout.
TEST_F(FakeGpus, TensorMapsHaveTheAddressesOfTheirCall) {
  if (cuda::kernel_preference() != cuda::KernelPreference::best)
    GTEST_SKIP() << "CUFLASH_CUDA_KERNELS excludes kernels with tensor maps";
  static int maps_seen = 0;
  gpus.on_launch = [](const FakeLaunch& launch) {
    ASSERT_EQ(launch.params_size, 0u);
    expect_maps(*static_cast<const Sm90ForwardParams*>(launch.params));
    ++maps_seen;
  };
  const Stream stream;
  const Inputs in = dense({.batch = 2, .len_q = 70, .len_k = 70, .dtype = DType::bf16});
  const DeviceProblem first(in, stream), second(in, stream);
  ASSERT_NE(first.attention.q.data, second.attention.q.data);
  for (int repeat = 0; repeat < 2; ++repeat) first.forward(), second.forward();
  EXPECT_EQ(maps_seen, 4);
}

TEST_F(FakeGpus, OfTheKernelsOfBackwardThoseForHopperTakeTensorMaps) {
  if (cuda::kernel_preference() != cuda::KernelPreference::best)
    GTEST_SKIP() << "CUFLASH_CUDA_KERNELS excludes kernels with tensor maps";
  struct Launched {
    int main, dq, others;
    bool operator==(const Launched&) const = default;
  };
  static Launched launched;
  gpus.on_launch = [](const FakeLaunch& launch) {
    if (takes_backward_maps(launch)) {
      EXPECT_EQ(launch.params_size, 0u);
      backward_maps(launch);
      ++(runs(launch, "sm90_dq<") ? launched.dq : launched.main);
    } else {
      EXPECT_EQ(launch.params_size, sizeof(BackwardParams));
      ++launched.others;
    }
  };
  const Stream stream;
  const auto launches_of = [&](int64_t len_q, int64_t len_k, bool dq, bool dk, bool dv) {
    DeviceProblem problem(dense({.batch = 2, .len_q = len_q, .len_k = len_k, .dtype = DType::f16}), stream);
    problem.take_workspace();
    BackwardTensors tensors = problem.tensors();
    if (!dq) tensors.dq = {};
    if (!dk) tensors.dk = {};
    if (!dv) tensors.dv = {};
    launched = {};
    flash_attention_backward(problem.attention, tensors, problem.execution);
    return launched;
  };
  EXPECT_EQ(launches_of(1100, 70, true, true, true), (Launched{1, 0, 2}));  // a single sum needs no order
  EXPECT_EQ(launches_of(70, 300, true, true, true), (Launched{1, 1, 1}));   // prepare, and no finish
  EXPECT_EQ(launches_of(70, 300, true, false, false), (Launched{0, 1, 1}));
  EXPECT_EQ(launches_of(70, 300, false, true, true), (Launched{1, 0, 1}));
  EXPECT_EQ(launches_of(70, 300, false, false, true), (Launched{1, 0, 1}));
}

// The tuner's candidates are launched, and their results are compared with the oracle.
TEST_F(FakeGpus, CandidatesOfTheTunerAreCompiledLaunchedAndChecked) {
  const bool hopper = cuda::kernel_preference() == cuda::KernelPreference::best;
  static std::string launched;
  const auto emulate_all = [](const FakeLaunch& launch) {
    if (launch.params_size == sizeof(ForwardParams)) emulate(*static_cast<const ForwardParams*>(launch.params));
    else if (launch.params_size == sizeof(BackwardParams)) emulate(*static_cast<const BackwardParams*>(launch.params));
    else if (runs(launch, "sm90_forward<")) emulate(static_cast<const Sm90ForwardParams*>(launch.params)->forward);
    else if (takes_backward_maps(launch)) emulate(backward_maps(launch).backward);
    launched += launch.program;
  };
  const cli::TuneTarget target{false, cuda::device(0).arch, cuda::device(0).num_sms};
  cli::CudaTimer timer;
  cli::Compiled compiled;
  for (const char* direction : {cli::kForward, cli::kBackward}) {
    const cli::BenchPoint point{"cuda", direction, "bf16", 1, 2, 2, 100, 100, 64, 64, true, 0};
    std::vector<cli::Candidate> all = candidates_of(point, target);
    ASSERT_GT(all.size(), 3u);
    std::vector<cli::Candidate*> some{&all[0], &all[1], &all[2]};
    compile(some, point, target, compiled);
    gpus.on_launch = emulate_all;
    cli::Trial trial(point, &timer, 1);
    for (const cli::Candidate* candidate : some) {
      EXPECT_EQ(candidate->rejected, "");
      EXPECT_EQ(candidate->choice.family, hopper ? "sm90" : "portable");
      launched.clear();
      EXPECT_EQ(trial.fault(*candidate), "") << to_string(candidate->choice);
      const auto kernel = cli::launch_of(point, target, candidate->choice).kernel;
      EXPECT_NE(launched.find(cuda::program_of(kernel).source), std::string::npos) << to_string(candidate->choice);
    }
    EXPECT_GE(trial.times({some[0], some[1]}, 0.001)[1].size(), 5u);
    gpus.on_launch = nullptr;  // a kernel that does nothing
    EXPECT_NE(trial.fault(*some[1]), "");
  }
  EXPECT_EQ(compiled.size(), 6u);
}

TEST_F(FakeGpus, KernelsOfTheTunerAreCompiledOnceAndUntilItIsTimeToStop) {
  const cli::TuneTarget target{false, cuda::device(0).arch, cuda::device(0).num_sms};
  const cli::BenchPoint point{"cuda", cli::kForward, "bf16", 1, 2, 2, 100, 100, 64, 64, true, 0};
  std::vector<cuda::Program> programs;
  for (const cli::Candidate& candidate : candidates_of(point, target))
    if (candidate.rejected.empty() && programs.size() < 3)
      programs.push_back(cli::program_of(candidate, point, target));
  ASSERT_EQ(programs.size(), 3u);
  cli::Compiled compiled;
  compile({programs[0]}, compiled, [](size_t, size_t) { return false; });
  EXPECT_EQ(compiled.size(), 0u);
  compile({programs[0], programs[0]}, compiled, [](size_t, size_t all) { return all == 1; });
  EXPECT_EQ(compiled.size(), 1u);
  compile(programs, compiled, [](size_t begun, size_t all) { return begun < all && all == 2; });
  EXPECT_EQ(compiled.size(), 3u);
  compile(programs, compiled, [](size_t, size_t) -> bool { throw std::logic_error("nothing is left to compile"); });
}

TEST_F(FakeGpus, NothingToComputeLaunchesNothing) {
  const int before = gpus.launches;
  const Stream stream;
  const DeviceBuffer memory(4096);
  auto* data = static_cast<float*>(memory.data());
  const Attention a{.q = bhsd(data, 1, 2, 0, 8), .k = bhsd(data, 1, 2, 4, 8), .v = bhsd(data + 64, 1, 2, 4, 8)};
  flash_attention_forward(a, {.o = bhsd(data + 128, 1, 2, 0, 8)}, {.stream = stream.handle()});
  EXPECT_EQ(gpus.launches, before);
}

}  // namespace
}  // namespace cuflash::test
