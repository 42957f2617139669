// Reads ptxas' report.
#include <sstream>
#include <string_view>

#include "cuda/jit/compile.h"

namespace cuflash::cuda {
namespace {

// The number in front of a phrase: 40 in "Used 40 registers, used 1 barriers". `fallback` if the phrase does not occur.
int number_before(std::string_view line, std::string_view phrase, int fallback) {
  const size_t end = line.find(phrase);
  if (end == std::string_view::npos) return fallback;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return begin == end ? fallback : std::stoi(std::string(line.substr(begin, end - begin)));
}

}  // namespace

KernelUse read_use(const std::string& log) {
  KernelUse use;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    use.stack = number_before(line, " bytes stack frame", use.stack);
    use.spill_stores = number_before(line, " bytes spill stores", use.spill_stores);
    use.spill_loads = number_before(line, " bytes spill loads", use.spill_loads);
    use.registers = number_before(line, " registers", use.registers);
    use.static_shared = number_before(line, " bytes smem", use.static_shared);
    if (line.find("warning") != std::string::npos || line.find("Potential Performance Loss") != std::string::npos)
      use.warnings.push_back(line);
  }
  return use;
}

}  // namespace cuflash::cuda
