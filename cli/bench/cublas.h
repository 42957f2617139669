// A large product by cuBLAS, which measures the peak of a GPU. cuBLAS is loaded if it is found; nothing depends on it.
#pragma once

#include <cuflash/flash_attention.h>

#include <functional>

namespace cuflash::cli {

// C = A B of N x N matrices of f16 or bf16 on this stream; empty if cuBLAS is not found or fails.
std::function<void()> cublas_product(DType type, int n, const void* a, const void* b, void* c, void* stream);

}  // namespace cuflash::cli
