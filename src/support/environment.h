// What the process environment says about CUDA, read once. A program with more rights than its user (setuid, capabilities)
// does not listen to that user's environment: it says where code is loaded from.
#pragma once

#include <string>
#include <vector>

namespace cuflash {

struct Environment {
  std::string cache_dir;       // CUFLASH_CACHE_DIR, or cuflash under the user's cache directory; "": there is none
  std::string cache_dir_from;  // the variable that says so
  std::string pack;            // CUFLASH_PACK
  std::string jit;             // CUFLASH_JIT: "", "on" or "off"
  std::string kernels;         // CUFLASH_CUDA_KERNELS: "", "portable" or "best"
  std::string tuned;           // CUFLASH_TUNED: "", "on" or "off"
  std::vector<std::string> cuda_homes;  // where CUDA or an environment with it may be installed
  std::string virtual_env;
};
const Environment& environment();  // throws where a variable has a value that it cannot have

}  // namespace cuflash
