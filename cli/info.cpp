// What this build is and what it finds on this machine.
#include <cstdlib>
#include <iostream>

#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/info_cuda.h"
#include "cli/machine.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"

namespace cuflash::cli {

int run_info(const InfoOptions& options) {
#if defined(__clang__)
  const char* compiler = "clang " __clang_version__;
#else
  const char* compiler = "g++ " __VERSION__;
#endif
  const Cpu cpu = this_cpu();
  std::cout << "cuflash      " << cuflash_version() << "\n"
            << "compiler     " << compiler << "\n"
            << "cpu          " << cpu.model << "\n"
            << "features    ";
  for (const std::string& feature : cpu.features) std::cout << " " << feature;
  const char* num_threads = std::getenv("CUFLASH_NUM_THREADS");
  const char* isa = std::getenv("CUFLASH_CPU_ISA");
  std::cout << "\n"
            << "kernels     ";
  for (const char* name : cpu::isa_names()) std::cout << " " << name;
  std::cout << " (in use: " << cpu::isa_name() << ")\n"
            << "threads      " << cpu::default_num_threads() << "\n";
  print_cuda(options);
  std::cout << "environment  CUFLASH_NUM_THREADS "
            << (num_threads ? num_threads : "is not set: every core this process may use") << "\n"
            << "             CUFLASH_CPU_ISA " << (isa ? isa : "is not set: the best kernels for this processor")
            << "\n";
  return kExitOk;
}

}  // namespace cuflash::cli
