#include "cuda/jit/nvrtc.h"

#include <dlfcn.h>

#include "cuda/driver/driver.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

// A library without one of these functions is not NVRTC.
bool load(void* handle, Nvrtc& n) {
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    complete = complete && function;
  };
  find(n.nvrtcVersion, "nvrtcVersion");
  find(n.nvrtcGetErrorString, "nvrtcGetErrorString");
  find(n.nvrtcGetNumSupportedArchs, "nvrtcGetNumSupportedArchs");
  find(n.nvrtcGetSupportedArchs, "nvrtcGetSupportedArchs");
  find(n.nvrtcCreateProgram, "nvrtcCreateProgram");
  find(n.nvrtcDestroyProgram, "nvrtcDestroyProgram");
  find(n.nvrtcCompileProgram, "nvrtcCompileProgram");
  find(n.nvrtcGetCUBINSize, "nvrtcGetCUBINSize");
  find(n.nvrtcGetCUBIN, "nvrtcGetCUBIN");
  find(n.nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize");
  find(n.nvrtcGetProgramLog, "nvrtcGetProgramLog");
  int major = 0, minor = 0;
  if (!n.nvrtcVersion || n.nvrtcVersion(&major, &minor) != 0) return false;
  n.version = 1000 * major + 10 * minor;
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(n.nvrtcVersion), &info) && info.dli_fname) n.path = info.dli_fname;
  return complete;
}

}  // namespace

Nvrtc load_nvrtc(const std::vector<std::string>& candidates) {
  std::string found;
  for (const std::string& name : candidates) {
    // The handle is never closed: NVRTC does not free what it allocates when it is loaded.
    void* handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    Nvrtc n{};
    if (!handle) continue;
    const bool complete = load(handle, n);
    if (complete && n.version >= kMinNvrtcVersion) return n;
    found += join(found.empty() ? "; found " : ", ", n.path.empty() ? name : n.path, " of version ",
                  version_text(n.version), complete ? "" : " (not complete)");
  }
  throw FlashAttentionError(
      CUFLASH_NO_DEVICE,
      join("compiler: kernels are compiled at first use by NVRTC ", version_text(kMinNvrtcVersion),
           " or newer, and no such libnvrtc was found (looked at ", candidates.size(),
           " places: the loader's path, CUDA_HOME, /usr/local/cuda*, Python packages)", found,
           "; install CUDA or 'pip install nvidia-cuda-nvrtc', or set CUFLASH_PACK to a file of 'cuflash pack'"));
}

const Nvrtc& nvrtc() {
  static const Nvrtc instance = load_nvrtc(nvrtc_candidates());
  return instance;
}

}  // namespace cuflash::cuda
