// The library's calls on the device that is checked: on the CPU as they are, on CUDA with every tensor and the workspace
// copied to the device and back (mirror.h). The same problem, memory and checks serve both.
#pragma once

#include <cuflash/cached_attention.h>

#include <string>

namespace cuflash::check {

// CUDA: on a stream of this thread; without a workspace it comes from the pool, and bounds that packed lengths need
// there are found from the lengths in host memory.
void forward(Device device, const Attention& attention, const ForwardOutputs& outputs, const Execution& execution);
void backward(Device device, const Attention& attention, const BackwardTensors& tensors, const Execution& execution);
void attend_cache(Device device, const Attention& attention, const CacheTensors& cache, const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const ForwardOutputs& outputs,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const BackwardTensors& tensors,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const CacheTensors& cache,
                       const Execution& execution);

// "" where there is a GPU, or why none can be used.
std::string why_no_cuda();

}  // namespace cuflash::check
