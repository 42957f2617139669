#include "kernel_record.h"

#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "cuda/jit/compile.h"
#include "error.h"
#include "support/kernel_headers.h"
#include "support/sha256.h"

namespace cuflash::test {
namespace {

constexpr size_t kDigits = 16;  // digits of a digest that suffice to distinguish versions of a few hundred kernels

const char* text_of(const std::string& header) {
  for (const KernelHeader& h : kernel_headers())
    if (h.name == header) return h.text;
  return nullptr;  // the compiler's own
}

// Appends the text without comments to `all`, and what it includes to `open`.
void read_text(const std::string& text, std::string& all, std::vector<std::string>& open) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(' ');
    if (first == std::string::npos || line.compare(first, 2, "//") == 0) continue;
    all += line + '\n';
    constexpr std::string_view kInclude = "#include \"";
    if (line.compare(first, kInclude.size(), kInclude) != 0) continue;
    const size_t begin = first + kInclude.size();
    open.push_back(line.substr(begin, line.find('"', begin) - begin));
  }
}

}  // namespace

std::string digest_of(const cuda::Program& program, int compiler_version) {
  std::string all = join("nvrtc ", compiler_version, "\n");
  for (const std::string& flag : cuda::compile_flags(program.arch)) all += flag + '\n';
  std::vector<std::string> open;
  std::set<std::string> seen;
  read_text(program.source, all, open);
  while (!open.empty()) {
    const std::string header = open.back();
    open.pop_back();
    if (!seen.insert(header).second) continue;
    if (const char* text = text_of(header)) all += header + '\n', read_text(text, all, open);
  }
  return hex(sha256(all)).substr(0, kDigits);
}

KernelRecord read_record(const std::string& path) {
  KernelRecord record;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, registers, shared;
    KernelReport report;
    if (!(words >> name >> registers >> report.registers >> shared >> report.static_shared >> report.sources) ||
        registers != "registers" || shared != "shared")
      throw std::runtime_error(path + ": '" + line + "' must be <kernel> registers <n> shared <bytes> <digest>");
    record[name] = report;
  }
  return record;
}

void write_record(const std::string& path, const KernelRecord& record) {
  std::ofstream file(path);
  for (const auto& [name, report] : record)
    file << name << " registers " << report.registers << " shared " << report.static_shared << ' ' << report.sources
         << '\n';
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

}  // namespace cuflash::test
