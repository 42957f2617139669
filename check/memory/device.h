// Calls the library on the device under test: directly on the CPU, and on CUDA with every tensor and the workspace copied to
// the device and back (mirror.h). Both share problems, memory and checks.
#pragma once

#include <cuflash/cached_attention.h>

#include <string>

namespace cuflash::check {

// On CUDA the call runs on this thread's stream. Without a workspace the library takes one from the pool. The bounds of
// packed lengths are computed from the lengths in host memory.
void forward(Device device, const Attention& attention, const ForwardOutputs& outputs, const Execution& execution);
void backward(Device device, const Attention& attention, const BackwardTensors& tensors, const Execution& execution);
void attend_cache(Device device, const Attention& attention, const CacheTensors& cache, const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const ForwardOutputs& outputs,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const BackwardTensors& tensors,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const CacheTensors& cache,
                       const Execution& execution);

// The time of all calls on CUDA so far, summed over threads, in seconds. It includes copies and the loading of kernels.
double seconds_on_cuda();

// "" if there is a GPU, or why none can be used.
std::string why_no_cuda();

}  // namespace cuflash::check
