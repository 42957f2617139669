// What this machine is, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuflash::cli {

struct Cpu {
  std::string model;
  std::vector<std::string> features;  // of those that matter for attention, under the kernel's names
};
Cpu this_cpu();

int64_t physical_memory();  // bytes

}  // namespace cuflash::cli
