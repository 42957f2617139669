// What the process environment says about CUDA, read once.
#pragma once

#include <string>
#include <vector>

namespace cuflash::cuda {

struct Environment {
  std::string cache_dir;  // CUFLASH_CACHE_DIR, or cuflash under the user's cache directory; "": there is none
  std::string pack;       // CUFLASH_PACK
  std::string jit;        // CUFLASH_JIT: "", "on" or "off"
  std::string kernels;    // CUFLASH_CUDA_KERNELS: "", "portable" or "best"
  std::string tuned;      // CUFLASH_TUNED: "", "on" or "off"
  std::vector<std::string> cuda_homes;  // where CUDA or an environment with it may be installed
  std::string virtual_env;
};
const Environment& environment();

}  // namespace cuflash::cuda
