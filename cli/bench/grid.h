// The problems that `cuflash bench` measures, with their operations, bytes and names.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments/commands.h"
#include "cli/bench/file.h"

namespace cuflash::cli {

inline constexpr const char *kForward = "forward", *kBackward = "backward", *kDecode = "decode";
inline constexpr const char *kCuflash = "cuflash", *kNaive = "naive";

// "cpu" or "cuda". Throws if a GPU is requested and none can be used.
std::string bench_device(Device wanted);

// Every combination of the lists, longest sequences last. `device` is "cpu" or "cuda". Throws UsageError.
std::vector<BenchPoint> bench_grid(const BenchOptions& options, const std::string& device);

DType dtype_of(const BenchPoint& point);
double useful_operations(const BenchPoint& point);  // for the visible pairs: two products forward, five backward
double key_value_bytes(const BenchPoint& point);    // K and V, once
double tensor_bytes(const BenchPoint& point);       // all inputs and outputs

// "forward bf16 B=1 H=8 S=512 D=64 causal"
std::string point_text(const BenchPoint& point);

}  // namespace cuflash::cli
