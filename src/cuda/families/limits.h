// Whether a config of somebody's choice can be compiled and run: the rules of the kernels, shared memory, registers. Says
// so before anything is compiled; what only the compiler knows, it says then.
#pragma once

#include "config.h"
#include "cuda/driver/arch.h"

namespace cuflash::cuda {

// crowded: it runs, but not as many CTAs side by side as its registers are dealt out for.
enum class Fault { none, crowded, shape, shared_memory, registers };

struct Limits {
  Fault fault = Fault::none;
  int shared_bytes = 0, shared_most = 0;  // of a CTA
  int registers = 0, registers_most = 0;  // of a thread: about what is needed, and what there is
};
// The head sizes, the element and how rows are copied must be those of a plan.
Limits limits_of(const ForwardConfig& config, const Arch& arch);
Limits limits_of(const Sm90ForwardConfig& config, const Arch& arch);
Limits limits_of(const BackwardConfig& config, const Arch& arch);
Limits limits_of(const Sm90BackwardConfig& config, const Arch& arch);
Limits limits_of(const Sm90DqConfig& config, const Arch& arch);
Limits limits_of(const KvConfig& config, const Arch& arch);

template <class Config>
bool is_legal(const Config& config, const Arch& arch) {
  const Fault fault = limits_of(config, arch).fault;
  return fault == Fault::none || fault == Fault::crowded;
}

}  // namespace cuflash::cuda
