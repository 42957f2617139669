// Messages about CUDA. None needs a GPU: they use the fake drivers and compilers of the other tests.
#include <dlfcn.h>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/families/registry.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/program.h"
#include "cuda/launch/launch.h"
#include "tests/cuda/recording_driver/libcuda.h"
#include "tests/docs/provoke.h"

namespace cuflash::docs {

namespace {

// A driver with memory and a compiler that work; only the kernels do nothing.
const Environment kGpu = {{"LD_LIBRARY_PATH", CUFLASH_FAKE_GPU_DIR},
                          {"CUFLASH_CACHE_DIR", CUFLASH_FAKE_GPU_DIR "/docs"},
                          {"CUFLASH_JIT", "on"},
                          {"CUFLASH_PACK", ""}};
// A driver that can be told to fail, and the same compiler.
const Environment kFailing = {{"LD_LIBRARY_PATH", CUFLASH_RECORDING_DIR ":" CUFLASH_FAKE_GPU_DIR},
                              {"CUFLASH_CACHE_DIR", CUFLASH_FAKE_GPU_DIR "/docs"},
                              {"CUFLASH_JIT", "on"},
                              {"CUFLASH_PACK", ""}};

Environment with(Environment environment, const char* name, const char* value) {
  environment.emplace_back(name, value);
  return environment;
}

// The call of provoke.h with its tensors in device memory.
struct DeviceCall : Call {
  DeviceCall() {
    for (ConstTensor* t : {&attention.q, &attention.k, &attention.v, &tensors.o, &tensors.lse, &tensors.dout})
      t->data = memory();
    for (Tensor* t : {&outputs.o, &outputs.lse, &tensors.dq, &tensors.dk, &tensors.dv}) t->data = memory();
  }

 private:
  static void* memory() {
    const cuda::DeviceGuard current(0);
    cuda::CUdeviceptr data = 0;
    cuda::check(cuda::driver().cuMemAlloc(&data, 1 << 20), "cuMemAlloc");
    return reinterpret_cast<void*>(data);
  }
};

template <class Change>
void forward(Change change) {
  DeviceCall call;
  change(call);
  call.forward();
}
template <class Change>
void backward(Change change) {
  DeviceCall call;
  change(call);
  call.backward();
}

void ask_for_cuda() {
  Call call;
  call.execution.device = Device::cuda;
  call.forward();
}

// A sequence or more in the rows of one head; lengths are never read on the host.
void make_packed(Call& c) {
  const auto packed = [](auto t) {
    t.rank = 3, t.shape = {t.shape[2], t.shape[1], t.shape[3]}, t.stride = {t.stride[2], t.stride[1], 1};
    return t;
  };
  const void* lengths = c.tensors.lse.data;
  c.attention.q = packed(c.attention.q), c.attention.k = packed(c.attention.k), c.attention.v = packed(c.attention.v);
  c.outputs = {.o = packed(c.outputs.o)};
  c.attention.cu_seqlens_q = c.attention.cu_seqlens_k = contiguous(static_cast<const int32_t*>(lengths), 3);
}

test::RecordingDriver& failing() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  return *reinterpret_cast<test::RecordingDriver* (*)()>(::dlsym(library, "recording_driver"))();
}

cuda::KernelKey key_on(const char* arch) {
  const ForwardConfig config{Element::bf16, 64, 64, 64, 64, 4, 1, 1, 1, 0, 0};
  return key_of(cuda::kernel_type("forward"), cuda::arch_named(arch), config);
}

void launch_one() {
  const cuda::Launch launch{key_on("sm_90a"), 7, 3, 1, 128, 50000};
  const cuda::Launch* const launches[] = {&launch};
  cuda::KernelParams params;
  params.set([] { return 0; });
  cuda::launch(cuda::DeviceGuard(0), launches, params, nullptr);
}

// A capture has begun, and a call is asked to wait for it.
void wait_in_capture(Call& c) {
  const cuda::DeviceGuard current(0);
  cuda::CUstream stream = nullptr;
  cuda::check(cuda::driver().cuStreamCreate(&stream, 1), "cuStreamCreate");
  cuda::check(cuda::driver().cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  c.execution.stream = stream, c.execution.check_lengths = true;
}

}  // namespace

std::vector<Message> cuda_messages() {
  return {
      // Missing drivers and compilers
      {"no-driver", {{"LD_LIBRARY_PATH", CUFLASH_NO_DRIVER_DIR}}, ask_for_cuda},
      {"old-driver", with(kFailing, "RECORDING_VERSION", "12020"), ask_for_cuda},
      {"no-gpu", with(kFailing, "RECORDING_INIT", "100"), ask_for_cuda},
      {"old-gpu", kFailing, [] { cuda::device(2); }},
      {"no-compiler", {}, [] { cuda::load_nvrtc({"libnvrtc-that-is-not-there.so"}); }},
      {"compiler-target", kGpu, [] { cuda::compile(cuda::program_of(key_on("sm_80"))); }},
      {"no-such-device", kFailing, [] { cuda::device(9); }},
      {"jit-off", with(with(kGpu, "CUFLASH_JIT", "off"), "CUFLASH_CACHE_DIR", CUFLASH_NO_DRIVER_DIR "/nothing"),
       [] { forward([](Call&) {}); }},
      {"jit-setting", with(kGpu, "CUFLASH_JIT", "perhaps"), [] { forward([](Call&) {}); }},
      {"tuned-setting", with(kGpu, "CUFLASH_TUNED", "perhaps"), [] { forward([](Call&) {}); }},
      {"kernels-setting", with(kGpu, "CUFLASH_CUDA_KERNELS", "fastest"), [] { forward([](Call&) {}); }},
      {"kernel-not-accepted", kFailing,
       [] {
         failing().load_result = cuda::CUDA_ERROR_NO_BINARY_FOR_GPU;
         launch_one();
       }},
      {"launch-failed", kFailing,
       [] {
         failing().launch_result = 700;
         launch_one();
       }},
      // Memory in the wrong place
      {"host-memory", kGpu, ask_for_cuda},
      {"mixed-memory", kGpu, [] { forward([](Call& c) { c.attention.k.data = c.k.data(); }); }},
      {"kernel-name", {}, [] { cuda::kernel_named("sm_90a"); }},
      {"arch-name", {}, [] { cuda::arch_named("sm_70"); }},
      {"capture", kGpu, [] { forward(wait_in_capture); }},
      // Workspaces
      {"no-workspace", kGpu, [] { backward([](Call&) {}); }},
      {"pool-has-not", kGpu,
       [] {
         backward([](DeviceCall& c) {
           c.make_huge(c.tensors.dq.data, c.tensors.dk.data), c.execution.workspace_from_pool = true;
         });
       }},
      {"allocate-has-not", kGpu,
       [] { backward([](Call& c) { c.execution.allocate = [](void*, size_t) -> void* { return nullptr; }; }); }},
      // Lengths
      {"no-bound", kGpu, [] { forward(make_packed); }},
      // Problems that the kernels do not compute
      {"large-head", kGpu,
       [] {
         forward([](Call& c) {
           for (ConstTensor* t : {&c.attention.q, &c.attention.k}) *t = bhsd(t->data, DType::f32, 2, 4, 8, 320);
         });
       }},
      {"long", kGpu,
       [] {
         forward([](Call& c) {
           for (ConstTensor* t : {&c.attention.k, &c.attention.v})
             t->shape[2] = (int64_t{1} << 31) - 1, t->stride = {0, 0, 0, 1};
         });
       }},
  };
}

}  // namespace cuflash::docs
