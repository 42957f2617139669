#include "cuda/environment.h"

#include <cstdlib>

namespace cuflash::cuda {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The XDG base directory rules: a relative path is as good as none.
std::string default_cache_dir() {
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with('/')) return cache + "/cuflash";
  return home.starts_with('/') ? home + "/.cache/cuflash" : "";
}

Environment read() {
  Environment e;
  e.cache_dir = variable("CUFLASH_CACHE_DIR");
  if (e.cache_dir.empty()) e.cache_dir = default_cache_dir();
  e.pack = variable("CUFLASH_PACK");
  e.jit = variable("CUFLASH_JIT");
  e.kernels = variable("CUFLASH_CUDA_KERNELS");
  e.tuned = variable("CUFLASH_TUNED");
  for (const char* name : {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"})
    if (const std::string home = variable(name); !home.empty()) e.cuda_homes.push_back(home);
  e.virtual_env = variable("VIRTUAL_ENV");
  return e;
}

}  // namespace

const Environment& environment() {
  static const Environment instance = read();
  return instance;
}

}  // namespace cuflash::cuda
