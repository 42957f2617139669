// Grids of one stream that overlap (programmatic dependent launch). PTX ISA, "griddepcontrol".
#pragma once

namespace cuflash {

// Until all grids before this one have ended, and what they have written can be read.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next grid may start when all CTAs of this one have said so, or have ended; it waits as above before it reads.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace cuflash
