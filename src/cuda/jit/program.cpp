#include "cuda/jit/program.h"

#include <charconv>
#include <vector>

#include "dtype.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

Arch arch_of(const KernelKey& key) { return cuda::arch_of(key.arch / 10, key.arch % 10); }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

bool read_element(std::string_view text, int& value) {
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16})
    if (text == name_of(type)) return value = static_cast<int>(type), true;
  return false;
}
bool read_int(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string name_of(const KernelKey& key) {
  std::string name =
      join(key.type->name, ":", target_of(arch_of(key)), ":", name_of(static_cast<DType>(key.config[0])));
  for (size_t n = 1; n < key.type->config_ints; ++n) name += join(",", key.config[n]);
  return name;
}

KernelKey read_kernel_name(std::string_view name, std::span<const KernelType* const> types) {
  const auto parts = split(name, ':');
  if (parts.size() != 3) reject("kernel: '", name, "' must be <kernel>:<architecture>:<type>,<numbers>");
  for (const KernelType* type : types) {
    if (type->name != parts[0]) continue;
    KernelKey key{type, arch_named(parts[1]).number(), {}};
    const auto values = split(parts[2], ',');
    if (values.size() != type->config_ints)
      reject("kernel: '", name, "' has ", values.size(), " values, ", type->config, " has ", type->config_ints);
    for (size_t n = 0; n < values.size(); ++n)
      if (!(n == 0 ? read_element(values[n], key.config[n]) : read_int(values[n], key.config[n])))
        reject("kernel: '", values[n], "' in '", name, "' must be ", n == 0 ? "f64, f32, f16 or bf16" : "a number");
    return key;
  }
  reject("kernel: '", parts[0], "' in '", name, "' is not the name of a kernel");
}

Program program_of(const KernelKey& key) {
  const KernelType& type = *key.type;
  std::string config = join("Element{", key.config[0], "}");
  for (size_t n = 1; n < type.config_ints; ++n) config += join(", ", key.config[n]);
  return {name_of(key), arch_of(key),
          join("#include \"", type.header, "\"\nusing namespace cuflash;\nconstexpr ", type.config, " C{", config,
               "};\nextern \"C\" __global__ void __launch_bounds__(", type.bounds, ") ", kEntryName,
               "(const __grid_constant__ ", type.params, " p) { ", type.name, "<C>(p); }\n")};
}

}  // namespace cuflash::cuda
