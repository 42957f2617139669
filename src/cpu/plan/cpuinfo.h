// The contents of /proc/cpuinfo.
#pragma once

#include <fstream>
#include <map>
#include <string>

namespace cuflash::cpu {

// The first value of every key: all cores of a machine are assumed equal.
inline std::map<std::string, std::string> read_cpuinfo() {
  std::map<std::string, std::string> values;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t key_end = line.find_last_not_of(" \t", colon - 1);
    const size_t value_begin = line.find_first_not_of(" \t", colon + 1);
    if (key_end == std::string::npos || value_begin == std::string::npos) continue;
    values.emplace(line.substr(0, key_end + 1), line.substr(value_begin));
  }
  return values;
}

}  // namespace cuflash::cpu
