// This machine's processor, for reports.
#pragma once

#include <string>
#include <vector>

namespace cuflash::machine {

struct Cpu {
  std::string model;
  std::vector<std::string> features;  // those that matter for attention, as Linux names them
};
Cpu this_cpu();

}  // namespace cuflash::machine
