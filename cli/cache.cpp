// The disk cache of compiled kernels: what is in it, and away with it.
#include <iostream>

#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/text.h"
#include "cuda/binaries.h"

namespace cuflash::cli {

int run_cache(CacheAction action) {
  cuda::DiskCache& disk = cuda::binaries().disk();
  if (!disk.usable()) throw UsageError(join("the disk cache is not used: ", disk.state()));
  if (action == CacheAction::clear) {
    const size_t removed = disk.clear();
    if (!disk.state().empty()) throw UsageError(disk.state());
    std::cout << "removed " << removed << " kernels from " << disk.directory() << "\n";
    return kExitOk;
  }
  uint64_t bytes = 0;
  const auto listed = disk.list();
  for (const auto& item : listed) {
    std::cout << item.kernel << "  " << bytes_text(static_cast<double>(item.bytes)) << "  " << item.file << "\n";
    bytes += item.bytes;
  }
  std::cout << listed.size() << " kernels, " << bytes_text(static_cast<double>(bytes)) << " in " << disk.directory()
            << "\n";
  return kExitOk;
}

}  // namespace cuflash::cli
