// Which kernel: its type, the architecture, and its config as plain ints. Keys are compared and hashed as bytes on the
// launch path; program.h turns them into source.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "config.h"
#include "cuda/driver/arch.h"

namespace cuflash::cuda {

// A kernel template in kernels/, described as far as the program that instantiates it requires. The family that
// launches the kernel defines its type: one object, identified by its address.
struct KernelType {
  const char* name;    // name of the function template
  const char* header;  // its header in kernels/
  const char* config;  // struct of the template argument, in config.h
  const char* params;  // struct of the argument
  const char* bounds;  // arguments of __launch_bounds__, in terms of the config C
  size_t config_ints;
  // Whether the params hold tensor maps, which need a stricter alignment than a block of params has.
  bool takes_tensor_maps = false;
};
template <class Config>
inline constexpr size_t kInts = sizeof(Config) / sizeof(int);

struct KernelKey {
  const KernelType* type = nullptr;
  int arch = 0;  // Arch::number()
  std::array<int, 15> config{};

  bool operator==(const KernelKey& other) const { return std::memcmp(this, &other, sizeof other) == 0; }

  // The config as the struct of the type.
  template <class Config>
  Config as() const {
    static_assert(std::is_trivially_copyable_v<Config> && kInts<Config> <= std::tuple_size_v<decltype(config)>);
    Config typed;
    std::memcpy(&typed, config.data(), sizeof typed);
    return typed;
  }
};
static_assert(std::has_unique_object_representations_v<KernelKey>, "no padding: keys are compared and hashed as bytes");

template <class Config>
KernelKey key_of(const KernelType& type, const Arch& arch, const Config& config) {
  static_assert(sizeof config <= sizeof KernelKey::config && sizeof config % sizeof(int) == 0);
  KernelKey key{&type, arch.number(), {}};
  std::memcpy(key.config.data(), &config, sizeof config);
  return key;
}

}  // namespace cuflash::cuda
