// This machine's processor, for reports.
#pragma once

#include <string>
#include <vector>

namespace cuflash::machine {

struct Cpu {
  std::string model;
  std::vector<std::string> features;  // of those that matter for attention, under the kernel's names
};
Cpu this_cpu();

}  // namespace cuflash::machine
