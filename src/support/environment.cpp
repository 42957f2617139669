#include "support/environment.h"

#include <cstdlib>

#include "error.h"

namespace cuflash {
namespace {

std::string variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value ? value : "";
}

// The value of a variable that must be one of two words; "" if it is not set.
std::string one_of(const char* name, const char* first, const char* second) {
  const std::string value = variable(name);
  if (!value.empty() && value != first && value != second)
    reject(name, ": is '", value, "', must be ", first, " or ", second);
  return value;
}

// The XDG base directory rules: a relative path is ignored.
void find_cache_dir(Environment& e) {
  const auto take = [&](const char* name, const char* below) {
    const std::string value = variable(name);
    if (!e.cache_dir.empty() || value.empty() || (*below && !value.starts_with('/'))) return;
    e.cache_dir = value + below, e.cache_dir_from = name;
  };
  take("CUFLASH_CACHE_DIR", "");
  take("XDG_CACHE_HOME", "/cuflash");
  take("HOME", "/.cache/cuflash");
}

Environment read() {
  Environment e;
  find_cache_dir(e);
  e.pack = variable("CUFLASH_PACK");
  e.jit = one_of("CUFLASH_JIT", "on", "off");
  e.kernels = one_of("CUFLASH_CUDA_KERNELS", "portable", "best");
  e.tuned = one_of("CUFLASH_TUNED", "on", "off");
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

}  // namespace cuflash
