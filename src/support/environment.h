// The environment variables of the library, read once. A program with more rights than its user (setuid, capabilities)
// ignores them, because they decide where code is loaded from.
#pragma once

#include <string>
#include <vector>

namespace cuflash {

struct Environment {
  std::string cache_dir;                // CUFLASH_CACHE_DIR, or cuflash in the user's cache directory; "": none
  std::string cache_dir_from;           // the variable that it comes from
  std::string pack;                     // CUFLASH_PACK
  std::string jit;                      // CUFLASH_JIT: "", "on" or "off"
  std::string kernels;                  // CUFLASH_CUDA_KERNELS: "", "portable" or "best"
  std::string tuned;                    // CUFLASH_TUNED: "", "on" or "off"
  std::vector<std::string> cuda_homes;  // where CUDA or an environment with it may be installed
  std::string virtual_env;
};
const Environment& environment();  // throws if a variable has an illegal value

}  // namespace cuflash
