// A tensor, the memory behind it, and the shape it has in its file.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <vector>

#include "files/tensors/array_file.h"

namespace cuflash::files {

// How the dimensions of a file become those of the library's tensor.
enum class Arrangement {
  plain,         // one to one
  heads_third,   // [B, S, H, D] in the file, [B, H, S, D] for the library
  leading_ones,  // [Sk], [Sq, Sk], ... stand for the last of four dimensions, as NumPy broadcasts
};

struct HostTensor {
  std::vector<int64_t> file_shape;
  std::vector<std::byte> bytes;
  Tensor view;  // absent where nothing was loaded
};

HostTensor zeros(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement);

// Of what the flag names (array_file.h); where it was not given, an absent tensor. Errors name the flag and the file.
HostTensor load_values(const char* flag, const std::string& file, DType type, Arrangement arrangement);
HostTensor load_mask(const char* flag, const std::string& file);
HostTensor load_lengths(const char* flag, const std::string& file);

// The float type that the file holds. Throws where it holds none.
DType float_type_of(const char* flag, const std::string& file, const Array& array);
HostTensor to_tensor(const char* flag, const std::string& file, const Array& array, DType type,
                     Arrangement arrangement);

// A safetensors file gets the tensor's own type, a .npy file float64 for f64 and float32 for all others.
Array to_array(const HostTensor& tensor, FileFormat format);

}  // namespace cuflash::files
