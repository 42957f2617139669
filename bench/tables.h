// The tables of the benchmark, each a function that measures and prints.
#pragma once

#include "bench/workload.h"

namespace cuflash::bench {

struct Settings {
  double seconds = 0.2;  // for each measurement
  int threads = 0;       // 0: the library's default
};

void peak(const Settings& settings);      // the processor's peak, and the share of it that is reached
void overhead(const Settings& settings);  // what a call costs in addition to its arithmetic
void scaling(const Settings& settings);   // one thread and all of them
void options(const Settings& settings);   // what each option costs
void cache(const Settings& settings);     // a decode step over a KV cache

}  // namespace cuflash::bench
