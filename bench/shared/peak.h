// The peak of one core: a loop of independent multiply-adds on registers, without loads.
#pragma once

#include <cstdint>

namespace cuflash::bench {

// Runs some instructions of one kind `steps` times, on random operands and independent sums. random: 64 numbers.
struct RegisterLoop {
  const char* name;
  int64_t operations;  // per step
  void (*run)(int64_t steps, const float* random);
};

RegisterLoop f32_register_loop();
RegisterLoop bf16_register_loop();  // run is null if this processor has none that is simple to measure

}  // namespace cuflash::bench
