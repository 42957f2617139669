#include "machine/cpu.h"

#include <array>
#include <map>
#include <set>
#include <sstream>

#include "cpu/plan/cpuinfo.h"
#include "error.h"

namespace cuflash::machine {

namespace {

// Arm cores have no name of their own in cpuinfo, only numbers.
std::string arm_model(const std::string& implementer, const std::string& part) {
  static const std::map<std::string, const char*> kArmParts{
      {"0xd07", "Cortex-A57"},  {"0xd08", "Cortex-A72"},  {"0xd0b", "Cortex-A76"}, {"0xd0c", "Neoverse N1"},
      {"0xd40", "Neoverse V1"}, {"0xd49", "Neoverse N2"}, {"0xd4f", "Neoverse V2"}};
  const auto known = implementer == "0x41" ? kArmParts.find(part) : kArmParts.end();
  return join(known == kArmParts.end() ? "unknown model" : known->second, " (implementer ", implementer, ", part ",
              part, ")");
}

}  // namespace

Cpu this_cpu() {
  constexpr std::array kFeatures{"asimd",    "asimdhp",  "asimddp", "bf16",     "i8mm",        "sve",
                                 "sve2",     "svebf16",  "sme",     "sse4_2",   "avx",         "avx2",
                                 "fma",      "f16c",     "avx512f", "avx_vnni", "avx512_bf16", "avx512_fp16",
                                 "amx_tile", "amx_bf16", "amx_fp16"};
  auto values = cpu::read_cpuinfo();
  Cpu cpu{"unknown", {}};
  if (values.count("model name")) cpu.model = values["model name"];
  else if (values.count("CPU part")) cpu.model = arm_model(values["CPU implementer"], values["CPU part"]);

  std::istringstream flags(values["flags"] + " " + values["Features"]);  // x86, Arm
  std::set<std::string> present;
  for (std::string flag; flags >> flag;) present.insert(flag);
  for (const char* feature : kFeatures) {
    if (present.count(feature)) cpu.features.emplace_back(feature);
  }
  return cpu;
}

}  // namespace cuflash::machine
