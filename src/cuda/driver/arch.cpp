#include "cuda/driver/arch.h"

#include <charconv>

#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr int kKiB = 1024;

// CUDA C++ Programming Guide, "Technical specifications per compute capability": the system reserves 1 KiB of each CTA.
constexpr Arch kKnown[] = {
    {8, 0, 163 * kKiB, 164 * kKiB, 108},
    {8, 6, 99 * kKiB, 100 * kKiB, 84},
    {8, 7, 163 * kKiB, 164 * kKiB},
    {8, 9, 99 * kKiB, 100 * kKiB, 142},
    {9, 0, 227 * kKiB, 228 * kKiB, 132, true, "a"},
    {10, 0, 227 * kKiB, 228 * kKiB, 148},
    {10, 3, 227 * kKiB, 228 * kKiB, 148},
    {11, 0, 227 * kKiB, 228 * kKiB},
    {12, 0, 99 * kKiB, 100 * kKiB},
    {12, 1, 99 * kKiB, 100 * kKiB},
};
// The limits assumed for a device that is newer than the table: every architecture so far has at least this much.
constexpr int kMinPerBlock = 99 * kKiB, kMinPerSm = 100 * kKiB;

std::string known_names() {
  std::string names;
  for (const Arch& arch : kKnown) names += (names.empty() ? "" : ", ") + target_of(arch);
  return names;
}

}  // namespace

Arch arch_named(std::string_view name) {
  std::string_view digits = name.substr(0, 3) == "sm_" ? name.substr(3) : name;
  const bool specific = !digits.empty() && digits.back() == 'a';
  if (specific) digits.remove_suffix(1);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size())
    for (const Arch& arch : kKnown)
      if (arch.number() == number && (!specific || *arch.suffix == 'a')) return arch;
  reject("arch: '", name, "' is not known; it may be one of ", known_names());
}

Arch arch_of(int major, int minor) {
  if (major < 8)
    throw FlashAttentionError(CUFLASH_UNSUPPORTED, join("device: its compute capability is ", major, ".", minor,
                                                        ", but the kernels need 8.0 or newer (Ampere)"));
  for (const Arch& arch : kKnown)
    if (arch.major == major && arch.minor == minor) return arch;
  return {.major = major, .minor = minor, .shared_per_block = kMinPerBlock, .shared_per_sm = kMinPerSm};
}

std::string target_of(const Arch& arch) { return join("sm_", arch.number(), arch.suffix); }

}  // namespace cuflash::cuda
