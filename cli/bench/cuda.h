// Timing on the first GPU, and its ceilings.
#pragma once

#include <cuflash/flash_attention.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cuflash::cli {

// Times a call by CUDA events right before and right after it. The timer writes a buffer larger than the L2 cache
// before each call, which also hides the call's host time.
class CudaTimer {
 public:
  CudaTimer();
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  struct Times {
    std::vector<double> milliseconds;
    std::vector<double> clocks;  // multiprocessor clock in MHz, right after each call
  };
  // Makes as many calls as fit into the time, at least five, after a third as many warm-up calls.
  Times times(const std::function<void()>& call, double seconds);

  // "read_gbs" from a large copy, which reads and writes; "bf16_tflops" from cuBLAS, if it is found, for 16-bit types.
  std::map<std::string, double> ceilings(const std::vector<DType>& dtypes, double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The kernel that counts cycles between two ticks of the GPU's own timer, some 50 us apart.
extern const char* const kClockSource;

double free_device_memory();      // bytes
std::string first_device_name();  // "NVIDIA H200"

}  // namespace cuflash::cli
