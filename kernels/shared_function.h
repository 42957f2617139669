// Marks functions that are compiled for host and device. This file includes nothing, since device compilers read it
// too.
#pragma once

#if defined(__CUDACC__)
#define CUFLASH_SHARED_FUNCTION __host__ __device__ inline
#else
#define CUFLASH_SHARED_FUNCTION inline
#endif
