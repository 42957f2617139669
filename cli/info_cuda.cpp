#include "cli/info_cuda.h"

#include <chrono>
#include <filesystem>
#include <iostream>

#include "cli/exit.h"
#include "cli/text.h"
#include "cuda/binaries.h"
#include "cuda/device.h"
#include "cuda/environment.h"
#include "cuda/nvrtc.h"
#include "cuda/typical.h"

namespace cuflash::cli {

namespace {

constexpr const char* kMoreLine = "\n             ";

// The architecture of the first GPU, or one that stands for it on a machine without.
cuda::Arch print_driver() {
  cuda::Arch first = cuda::arch_named("sm_90a");
  try {
    const cuda::Driver& driver = cuda::driver();
    std::cout << "libcuda      " << driver.path << ", CUDA " << cuda::version_text(driver.version) << "\n";
    const int count = cuda::device_count();
    for (int n = 0; n < count; ++n) {
      const cuda::DeviceState& device = cuda::device(n);
      size_t memory = 0;
      cuda::check(driver.cuDeviceTotalMem(&memory, device.handle), "cuDeviceTotalMem");
      if (n == 0) first = device.arch;
      std::cout << "gpu " << n << "        " << device.name << ", " << cuda::target_of(device.arch) << ", "
                << device.num_sms << " multiprocessors, " << bytes_text(static_cast<double>(memory)) << "\n";
    }
    std::cout << "backends     cpu, cuda\n";
  } catch (const FlashAttentionError& error) {
    std::cout << "backends     cpu\n"
              << "not cuda     " << error.what() << "\n";
  }
  return first;
}

bool print_compiler() {
  try {
    const cuda::Nvrtc& compiler = cuda::nvrtc();
    std::cout << "libnvrtc     " << compiler.path << ", NVRTC " << cuda::version_text(compiler.version) << "\n";
    return true;
  } catch (const FlashAttentionError& error) {
    std::cout << "libnvrtc     not found: " << error.what() << "\n";
    return false;
  }
}

void print_cache() {
  cuda::Binaries& binaries = cuda::binaries();
  const cuda::DiskCache& disk = binaries.disk();
  uint64_t bytes = 0;
  const auto listed = disk.list();
  for (const auto& item : listed) bytes += item.bytes;
  std::cout << "cache        ";
  if (disk.usable())
    std::cout << disk.directory() << ": " << listed.size() << " kernels, " << bytes_text(static_cast<double>(bytes));
  else std::cout << "not used";
  if (!disk.state().empty()) std::cout << (disk.usable() ? kMoreLine : ": ") << disk.state();
  const std::string& pack = cuda::environment().pack;
  std::cout << "\npack         ";
  if (pack.empty()) std::cout << "CUFLASH_PACK is not set\n";
  else if (!binaries.pack_state().empty()) std::cout << "not used: " << pack << " " << binaries.pack_state() << "\n";
  else std::cout << pack << ": " << binaries.pack_size() << " kernels\n";
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "cuflash_XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw UsageError(join("cannot make a directory like ", path_));
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// As two processes would, one after the other: each opens the cache anew.
double seconds_to_get(const cuda::Program& program, const std::string& directory, cuda::Origin expected) {
  const auto start = std::chrono::steady_clock::now();
  cuda::Binaries binaries({directory, "", "on"});
  const cuda::Binary binary = binaries.get(program);
  const auto end = std::chrono::steady_clock::now();
  if (binary.origin != expected) throw UsageError(join("the kernel could not be kept: ", binaries.disk().state()));
  return std::chrono::duration<double>(end - start).count();
}

void print_compile_time(const cuda::Arch& arch) {
  const TemporaryDirectory directory;
  const auto plan = cuda::plan_forward(cuda::forward_of({.causal = true}), arch);
  const cuda::Program program = cuda::program_of(plan.launch.kernel);
  const double cold = seconds_to_get(program, directory.path(), cuda::Origin::compiler);
  const double warm = seconds_to_get(program, directory.path(), cuda::Origin::disk);
  std::cout << "compile      " << fixed(cold, 2) << " s cold, " << fixed(1e3 * warm, 2) << " ms from disk ("
            << program.name << ")\n";
}

}  // namespace

void print_cuda(const InfoOptions& options) {
  const cuda::Arch arch = print_driver();
  const bool compiler = print_compiler();
  print_cache();
  if (options.measure && compiler) print_compile_time(arch);
  else std::cout << "compile      cuflash info --measure times it" << (compiler ? "\n" : ", with a compiler\n");
}

}  // namespace cuflash::cli
