#include "cuda/jit/compile.h"

#include <algorithm>
#include <memory>

#include "cuda/driver/driver.h"
#include "cuda/jit/nvrtc.h"
#include "error.h"
#include "support/kernel_headers.h"

namespace cuflash::cuda {
namespace {

constexpr size_t kLongestLog = 700;  // longest log in a message: the first errors fit into the C API's buffer

void check(const Nvrtc& n, int result, const char* what) {
  if (result != 0) throw FlashAttentionError(CUFLASH_INTERNAL, join(what, ": ", n.nvrtcGetErrorString(result)));
}

// Rejects an unknown target in a plain sentence, in place of the compiler's complaint about an option.
void require_target(const Nvrtc& n, const Program& program) {
  int count = 0;
  check(n, n.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> numbers(static_cast<size_t>(count));
  check(n, n.nvrtcGetSupportedArchs(numbers.data()), "nvrtcGetSupportedArchs");
  if (std::count(numbers.begin(), numbers.end(), program.arch.number())) return;
  const std::string target = target_of(program.arch);
  throw FlashAttentionError(
      CUFLASH_NO_DEVICE,
      join("compiler: ", n.path, " is NVRTC ", version_text(n.version), " and does not compile for ", target,
           "; install another version, or set CUFLASH_PACK to a file of 'cuflash pack --arch ", target, "'"));
}

std::string log_of(const Nvrtc& n, NvrtcProgram program) {
  size_t size = 0;  // including the terminator
  check(n, n.nvrtcGetProgramLogSize(program, &size), "nvrtcGetProgramLogSize");
  std::string log(size, '\0');
  check(n, n.nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
  log.resize(size ? size - 1 : 0);
  return log;
}

}  // namespace

std::vector<std::string> compile_flags(const Arch& arch) {
  return {"-std=c++20", "-arch=" + target_of(arch), "-default-device", "--ptxas-options=-v"};
}

Compiled compile(const Program& program) {
  const Nvrtc& n = nvrtc();
  require_target(n, program);
  std::vector<const char*> texts, names;
  for (const KernelHeader& header : kernel_headers()) texts.push_back(header.text), names.push_back(header.name);
  NvrtcProgram handle = nullptr;
  check(n,
        n.nvrtcCreateProgram(&handle, program.source.c_str(), "cuflash_kernel.cu", static_cast<int>(texts.size()),
                             texts.data(), names.data()),
        "nvrtcCreateProgram");
  const auto destroy = [&n](NvrtcProgram p) { n.nvrtcDestroyProgram(&p); };
  const std::unique_ptr<std::remove_pointer_t<NvrtcProgram>, decltype(destroy)> owner(handle, destroy);

  const std::vector<std::string> flags = compile_flags(program.arch);
  std::vector<const char*> options;
  for (const std::string& flag : flags) options.push_back(flag.c_str());
  const int result = n.nvrtcCompileProgram(handle, static_cast<int>(options.size()), options.data());
  Compiled compiled{{}, log_of(n, handle)};
  if (result != 0)
    throw FlashAttentionError(
        CUFLASH_INTERNAL, join("kernel ", program.name, " cannot be compiled by NVRTC ", version_text(n.version), " (",
                               n.nvrtcGetErrorString(result), "): ", compiled.log.substr(0, kLongestLog)));
  size_t size = 0;
  check(n, n.nvrtcGetCUBINSize(handle, &size), "nvrtcGetCUBINSize");
  compiled.cubin.resize(size);
  check(n, n.nvrtcGetCUBIN(handle, compiled.cubin.data()), "nvrtcGetCUBIN");
  return compiled;
}

}  // namespace cuflash::cuda
