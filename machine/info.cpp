#include "machine/info.h"

#include <cstdlib>
#include <ostream>

#include "cpu/isa/kernels.h"
#include "cpu/threads/threads.h"
#include "machine/cpu.h"
#include "machine/info_cuda.h"
#include "support/environment.h"

namespace cuflash::machine {

void write_info(std::ostream& out, const InfoOptions& options) {
#if defined(__clang__)
  const char* compiler = "clang " __clang_version__;
#else
  const char* compiler = "g++ " __VERSION__;
#endif
  // Fails on a wrong setting before anything is printed.
  environment();
  const char* in_use = cpu::isa_name();
  const int threads = cpu::default_num_threads();
  const Cpu cpu = this_cpu();
  out << "cuflash      " << cuflash_version() << "\n"
      << "compiler     " << compiler << "\n"
      << "cpu          " << cpu.model << "\n"
      << "features    ";
  for (const std::string& feature : cpu.features) out << " " << feature;
  const char* num_threads = std::getenv("CUFLASH_NUM_THREADS");
  const char* isa = std::getenv("CUFLASH_CPU_ISA");
  out << "\n"
      << "kernels     ";
  for (const char* name : cpu::isa_names()) out << " " << name;
  out << " (in use: " << in_use << ")\n"
      << "threads      " << threads << "\n";
  write_cuda(out, options);
  out << "environment  CUFLASH_NUM_THREADS "
      << (num_threads ? num_threads : "is not set: every core this process may use") << "\n"
      << "             CUFLASH_CPU_ISA " << (isa ? isa : "is not set: the best kernels for this processor") << "\n";
}

}  // namespace cuflash::machine
