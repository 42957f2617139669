#include "cli/bench/cublas.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cuda/jit/nvrtc.h"

namespace cuflash::cli {

namespace {

// Values of cublas_api.h and library_types.h.
constexpr int kNoTranspose = 0, kCompute32F = 68, kDefaultAlgorithm = -1, kReal16F = 2, kReal16BF = 14;

struct Cublas {
  void* handle = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*gemm)(void* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha, const void* a, int type_a,
              int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute,
              int algorithm) = nullptr;
};

// The names to open: as the loader searches for it, and in the folder of NVRTC, since NVIDIA's wheels ship both.
std::vector<std::string> candidates() {
  std::vector<std::filesystem::path> folders{""};
  try {
    folders.push_back(std::filesystem::path(cuda::nvrtc().path).parent_path());
    folders.push_back(folders.back() / "../../cublas/lib");
  } catch (const FlashAttentionError&) {
    // Without NVRTC there is only the loader's search.
  }
  std::vector<std::string> paths;
  for (const std::filesystem::path& folder : folders)
    for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) paths.push_back((folder / name).string());
  return paths;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Cublas open() {
  for (const std::string& path : candidates()) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    Cublas cublas;
    if (library && find(library, "cublasCreate_v2", cublas.create) &&
        find(library, "cublasSetStream_v2", cublas.set_stream) && find(library, "cublasGemmEx", cublas.gemm) &&
        cublas.create(&cublas.handle) == 0)
      return cublas;
  }
  return {};
}

}  // namespace

std::function<void()> cublas_product(DType type, int n, const void* a, const void* b, void* c, void* stream) {
  static const Cublas cublas = open();
  if (!cublas.handle || cublas.set_stream(cublas.handle, stream) != 0) return {};
  const int real = type == DType::bf16 ? kReal16BF : kReal16F;
  const auto multiply = [=] {
    const float one = 1, zero = 0;
    return cublas.gemm(cublas.handle, kNoTranspose, kNoTranspose, n, n, n, &one, a, real, n, b, real, n, &zero, c, real,
                       n, kCompute32F, kDefaultAlgorithm);
  };
  if (multiply() != 0) return {};
  return [multiply] { multiply(); };
}

}  // namespace cuflash::cli
