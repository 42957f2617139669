// Calls the library on the device under test: directly on the CPU, and on CUDA with every tensor and the workspace copied to
// the device and back (mirror.h). Both share problems, memory and checks.
#pragma once

#include <cuflash/cached_attention.h>

#include <string>

namespace cuflash::check {

// CUDA: on this thread's stream. Without a workspace the library takes one from the pool. The bounds that packed lengths
// need are computed from the lengths in host memory.
void forward(Device device, const Attention& attention, const ForwardOutputs& outputs, const Execution& execution);
void backward(Device device, const Attention& attention, const BackwardTensors& tensors, const Execution& execution);
void attend_cache(Device device, const Attention& attention, const CacheTensors& cache, const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const ForwardOutputs& outputs,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const BackwardTensors& tensors,
                       const Execution& execution);
size_t workspace_bytes(Device device, const Attention& attention, const CacheTensors& cache,
                       const Execution& execution);

// How long all calls on CUDA together took so far, copies and the loading of kernels included: in seconds of their threads.
double seconds_on_cuda();

// "" if there is a GPU, or why none can be used.
std::string why_no_cuda();

}  // namespace cuflash::check
