// Which kernel: its kind, the architecture and its config, as plain ints. Compared and hashed as bytes on the hot path;
// program.h turns it into source.
#pragma once

#include <array>
#include <cstring>

#include "config.h"
#include "cuda/driver/arch.h"

namespace cuflash::cuda {

enum class KernelKind : int {
  forward,
  backward_prepare,
  backward,
  backward_finish,
  backward_bias,
  backward_sink,
  sm90_forward,
  sm90_backward,
  sm90_dq,
  kv_attention,
  sm90_kv,
  merge_states,
};

struct KernelKey {
  KernelKind kind{};
  int arch = 0;  // Arch::number()
  std::array<int, 16> config{};

  bool operator==(const KernelKey&) const = default;
};

template <class Config>
KernelKey key_of(KernelKind kind, const Arch& arch, const Config& config) {
  static_assert(sizeof config <= sizeof KernelKey::config && sizeof config % sizeof(int) == 0);
  KernelKey key{kind, arch.number(), {}};
  std::memcpy(key.config.data(), &config, sizeof config);
  return key;
}

}  // namespace cuflash::cuda
