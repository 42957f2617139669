// Lists or clears the disk cache of compiled kernels, and the tuned choices in the same directory.
#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cuda/jit/binaries.h"
#include "machine/cache_problem.h"
#include "support/text.h"
#include "tuned/table.h"

namespace cuflash::cli {

int run_cache(CacheAction action) {
  cuda::DiskCache& disk = cuda::binaries().disk();
  if (!disk.usable()) throw UsageError(join("the disk cache is not used: ", machine::cache_problem(disk)));
  const tuned::Table tuned = tuned::read_table(disk.directory());
  const size_t choices = count(tuned.devices);
  if (action == CacheAction::clear) {
    const size_t removed = disk.clear();
    if (!disk.state().empty()) throw UsageError(disk.state());
    std::cout << "removed " << removed << " kernels" << (choices > 0 ? join(" and ", choices, " tuned choices") : "")
              << " from " << disk.directory() << "\n";
    return kExitOk;
  }
  uint64_t bytes = 0;
  const auto listed = disk.list();
  for (const auto& item : listed) {
    std::cout << item.kernel << "  " << bytes_text(static_cast<double>(item.bytes)) << "  " << item.file << "\n";
    bytes += item.bytes;
  }
  for (const auto& [device, of_device] : tuned.devices)
    for (const auto& [kind, measured] : of_device)
      std::cout << "tuned for " << in_quotes(device) << ": " << to_string(kind) << ": " << to_string(measured.choice)
                << ", saves " << measured.gain << "% of the time\n";
  if (!tuned.state.empty()) std::cout << "tuned choices are not used: " << tuned.state << "\n";
  std::cout << listed.size() << " kernels, " << bytes_text(static_cast<double>(bytes)) << " in " << disk.directory()
            << "\n";
  return kExitOk;
}

}  // namespace cuflash::cli
