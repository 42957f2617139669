#include "machine/info_cuda.h"

#include <chrono>
#include <filesystem>
#include <ostream>

#include "cuda/driver/device.h"
#include "cuda/jit/binaries.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/plan/typical.h"
#include "machine/cache_problem.h"
#include "support/environment.h"
#include "support/text.h"
#include "tuned/table.h"

namespace cuflash::machine {

namespace {

constexpr const char* kMoreLine = "\n             ";

// Returns the architecture of the first GPU, or sm_90a on a machine without one.
cuda::Arch write_driver(std::ostream& out) {
  cuda::Arch first = cuda::arch_named("sm_90a");
  try {
    const cuda::Driver& driver = cuda::driver();
    out << "libcuda      " << driver.path << ", CUDA " << cuda::version_text(driver.version) << "\n";
    const int count = cuda::device_count();
    for (int n = 0; n < count; ++n) {
      const cuda::DeviceState& device = cuda::device(n);
      size_t memory = 0;
      cuda::check(driver.cuDeviceTotalMem(&memory, device.handle), "cuDeviceTotalMem");
      if (n == 0) first = device.arch;
      out << "gpu " << n << "        " << device.name << ", " << cuda::target_of(device.arch) << ", " << device.num_sms
          << " multiprocessors, " << bytes_text(static_cast<double>(memory)) << "\n";
    }
    out << "backends     cpu, cuda\n";
  } catch (const FlashAttentionError& error) {
    out << "backends     cpu\n"
        << "not cuda     " << error.what() << "\n";
  }
  return first;
}

bool write_compiler(std::ostream& out) {
  try {
    const cuda::Nvrtc& compiler = cuda::nvrtc();
    out << "libnvrtc     " << compiler.path << ", NVRTC " << cuda::version_text(compiler.version) << "\n";
    return true;
  } catch (const FlashAttentionError& error) {
    out << "libnvrtc     not found: " << error.what() << "\n";
    return false;
  }
}

void write_cache(std::ostream& out) {
  cuda::Binaries& binaries = cuda::binaries();
  const cuda::DiskCache& disk = binaries.disk();
  uint64_t bytes = 0;
  const auto listed = disk.list();
  for (const auto& item : listed) bytes += item.bytes;
  out << "cache        ";
  if (disk.usable())
    out << disk.directory() << ": " << listed.size() << " kernels, " << bytes_text(static_cast<double>(bytes));
  else out << "not used: " << cache_problem(disk);
  if (disk.usable() && !disk.state().empty()) out << kMoreLine << disk.state();
  const tuned::Table& tuned = tuned::table();
  const size_t choices = count(tuned.devices);
  out << "\ntuned        ";
  if (!tuned.state.empty()) out << "not used: " << tuned.state;
  else if (choices == 0) out << "nothing; cuflash tune measures what is fastest on this machine";
  else out << choices << " choices for " << tuned.devices.size() << " devices in " << tuned.file;
  const std::string& pack = environment().pack;
  out << "\npack         ";
  if (pack.empty()) out << "CUFLASH_PACK is not set\n";
  else if (!binaries.pack_state().empty()) out << "not used: " << pack << " " << binaries.pack_state() << "\n";
  else out << pack << ": " << binaries.pack_size() << " kernels\n";
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "cuflash_XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw InfoError(join("cannot make a directory like ", path_));
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

// Opens the cache afresh, as a new process would.
double seconds_to_get(const cuda::Program& program, const std::string& directory, cuda::Origin expected) {
  const auto start = std::chrono::steady_clock::now();
  cuda::Binaries binaries({directory, "", "on"});
  const cuda::Binary binary = binaries.get(program);
  const auto end = std::chrono::steady_clock::now();
  if (binary.origin != expected) throw InfoError(join("the kernel could not be kept: ", binaries.disk().state()));
  return std::chrono::duration<double>(end - start).count();
}

void write_compile_time(std::ostream& out, const cuda::Arch& arch) {
  const TemporaryDirectory directory;
  const auto plan = cuda::plan_forward(cuda::forward_of({.causal = true}), arch);
  const cuda::Program program = cuda::program_of(plan.launch.kernel);
  const double cold = seconds_to_get(program, directory.path(), cuda::Origin::compiler);
  const double warm = seconds_to_get(program, directory.path(), cuda::Origin::disk);
  out << "compile      " << fixed(cold, 2) << " s cold, " << fixed(1e3 * warm, 2) << " ms from disk (" << program.name
      << ")\n";
}

}  // namespace

void write_cuda(std::ostream& out, const InfoOptions& options) {
  const cuda::Arch arch = write_driver(out);
  const bool compiler = write_compiler(out);
  write_cache(out);
  if (options.measure && compiler) write_compile_time(out, arch);
  else out << "compile      cuflash info --measure times it" << (compiler ? "\n" : ", with a compiler\n");
}

}  // namespace cuflash::machine
