// Compiles GPU kernels ahead of time.
#include <algorithm>
#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/terminal/progress.h"
#include "cuda/families/registry.h"
#include "cuda/jit/pack.h"
#include "cuda/plan/typical.h"
#include "files/tensors/output_files.h"
#include "support/environment.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

std::vector<cuda::KernelKey> chosen_kernels(const PackOptions& options) {
  std::vector<cuda::KernelKey> keys;
  const auto add = [&](const cuda::KernelKey& key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  };
  for (const std::string& name : options.archs)
    for (const cuda::KernelKey& key : cuda::typical_kernels(cuda::arch_named(name), {options.dtypes, options.dims}))
      add(key);
  for (const std::string& name : options.kernels) add(cuda::kernel_named(name));
  return keys;
}

}  // namespace

int run_pack(const PackOptions& options) {
  if (options.archs.empty() && options.kernels.empty())
    throw UsageError(
        "--arch or --kernel must say what to pack; for example: cuflash pack --arch sm_90a -o kernels.pack");
  const std::vector<cuda::KernelKey> keys = chosen_kernels(options);
  const std::string place = files::writable_place(options.out);
  // The content of a pack must not depend on another pack.
  cuda::Binaries binaries({environment().cache_dir, "", "on"});
  Progress progress;
  const size_t bytes = cuda::write_pack(keys, binaries, options.threads, place,
                                        [&](size_t done, size_t total, const std::string& kernel) {
                                          progress.show(join(done, " of ", total, ": ", kernel));
                                        });
  progress.clear();
  std::cout << keys.size() << " kernels, " << bytes_text(static_cast<double>(bytes)) << " in " << options.out
            << "; CUFLASH_PACK=" << options.out << " uses it\n";
  return kExitOk;
}

}  // namespace cuflash::cli
