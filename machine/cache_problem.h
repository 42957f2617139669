// Why the disk cache cannot be used, in the terms of the variable that names it.
#pragma once

#include <string>

#include "cuda/jit/disk_cache.h"
#include "error.h"
#include "support/environment.h"

namespace cuflash::machine {

inline std::string cache_problem(const cuda::DiskCache& disk) {
  const std::string& from = environment().cache_dir_from;
  return from.empty() ? disk.state() : join(from, ": ", disk.state());
}

}  // namespace cuflash::machine
