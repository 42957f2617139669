// Tests that compile kernels need NVRTC, and say so if it is missing.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/jit/nvrtc.h"
#include "cuda/jit/program.h"
#include "error.h"

namespace cuflash::test {

// Why there is no NVRTC, or "".
inline std::string nvrtc_missing() {
  try {
    cuda::nvrtc();
    return "";
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
}
#define CUFLASH_NEEDS_NVRTC() \
  if (const std::string missing = cuflash::test::nvrtc_missing(); !missing.empty()) GTEST_SKIP() << missing

// A kernel that compiles quickly.
inline cuda::Program small_program(int number = 0) {
  return {join("small", number), cuda::arch_named("sm_90a"),
          join("extern \"C\" __global__ void ", cuda::kEntryName, "(int* p) { *p = ", number, "; }\n")};
}

}  // namespace cuflash::test
