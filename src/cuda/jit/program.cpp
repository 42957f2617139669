#include "cuda/jit/program.h"

#include <charconv>
#include <iterator>
#include <vector>

#include "dtype.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

// One row for every kind, in their order.
struct Family {
  const char* name;    // of the function in the header
  const char* header;  // in kernels/
  const char* config;
  const char* params;
  const char* bounds;  // of __launch_bounds__
  size_t config_ints;
};
template <class Config>
constexpr size_t kInts = sizeof(Config) / sizeof(int);
constexpr Family kFamilies[] = {
    {"forward", "portable/forward.h", "ForwardConfig", "ForwardParams", "num_threads(C), C.ctas_per_sm",
     kInts<ForwardConfig>},
    {"backward_prepare", "portable/backward_prepare.h", "BackwardConfig", "BackwardParams", "prepare_threads(C)",
     kInts<BackwardConfig>},
    {"backward", "portable/backward.h", "BackwardConfig", "BackwardParams", "num_threads(C), C.ctas_per_sm",
     kInts<BackwardConfig>},
    {"backward_finish", "portable/backward_finish.h", "BackwardConfig", "BackwardParams", "finish_threads(C)",
     kInts<BackwardConfig>},
    {"backward_bias", "portable/backward_bias.h", "BackwardConfig", "BackwardParams", "bias_threads(C), C.ctas_per_sm",
     kInts<BackwardConfig>},
    {"backward_sink", "portable/backward_sink.h", "BackwardConfig", "BackwardParams", "sink_threads(C)",
     kInts<BackwardConfig>},
    {"sm90_forward", "sm90/forward.h", "Sm90ForwardConfig", "Sm90ForwardParams", "num_threads(C), 1",
     kInts<Sm90ForwardConfig>},
    {"sm90_backward", "sm90/backward.h", "Sm90BackwardConfig", "Sm90BackwardParams", "num_threads(C), 1",
     kInts<Sm90BackwardConfig>},
    {"sm90_dq", "sm90/dq.h", "Sm90DqConfig", "Sm90BackwardParams", "num_threads(C), 1", kInts<Sm90DqConfig>},
    {"kv_attention", "kv/attention.h", "KvConfig", "KvParams", "num_threads(C), C.ctas_per_sm", kInts<KvConfig>},
    {"sm90_kv", "kv/sm90_attention.h", "KvConfig", "Sm90KvParams", "num_threads(C), C.ctas_per_sm", kInts<KvConfig>},
    {"merge_states", "kv/merge_states.h", "MergeConfig", "MergeParams", "num_threads(C)", kInts<MergeConfig>},
};
static_assert(std::size(kFamilies) == static_cast<size_t>(KernelKind::merge_states) + 1);

Arch arch_of(const KernelKey& key) { return cuda::arch_of(key.arch / 10, key.arch % 10); }
const Family& family_of(KernelKind kind) { return kFamilies[static_cast<size_t>(kind)]; }

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
  const Family& family = family_of(key.kind);
  std::string name = join(family.name, ":", target_of(arch_of(key)), ":", name_of(static_cast<DType>(key.config[0])));
  for (size_t n = 1; n < family.config_ints; ++n) name += join(",", key.config[n]);
  return name;
}

KernelKey kernel_named(std::string_view name) {
  const auto parts = split(name, ':');
  if (parts.size() != 3) reject("kernel: '", name, "' must be <family>:<architecture>:<type>,<numbers>");
  for (const Family& family : kFamilies) {
    if (family.name != parts[0]) continue;
    KernelKey key{static_cast<KernelKind>(&family - kFamilies), arch_named(parts[1]).number(), {}};
    const auto values = split(parts[2], ',');
    if (values.size() != family.config_ints)
      reject("kernel: '", name, "' has ", values.size(), " values, ", family.config, " has ", family.config_ints);
    for (size_t n = 0; n < values.size(); ++n)
      if (!(n == 0 ? read_element(values[n], key.config[n]) : read_int(values[n], key.config[n])))
        reject("kernel: '", values[n], "' in '", name, "' must be ", n == 0 ? "f64, f32, f16 or bf16" : "a number");
    return key;
  }
  reject("kernel: '", parts[0], "' in '", name, "' is no family of kernels");
}

Program program_of(const KernelKey& key) {
  const Family& family = family_of(key.kind);
  std::string config = join("Element{", key.config[0], "}");
  for (size_t n = 1; n < family.config_ints; ++n) config += join(", ", key.config[n]);
  return {name_of(key), arch_of(key),
          join("#include \"", family.header, "\"\nusing namespace cuflash;\nconstexpr ", family.config, " C{", config,
               "};\nextern \"C\" __global__ void __launch_bounds__(", family.bounds, ") ", kEntryName,
               "(const __grid_constant__ ", family.params, " p) { ", family.name, "<C>(p); }\n")};
}

}  // namespace cuflash::cuda
