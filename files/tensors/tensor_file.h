// A tensor, its memory, and its shape in the file.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>
#include <vector>

#include "files/tensors/array_file.h"

namespace cuflash::files {

// The way in which the dimensions of a file become those of the library's tensor.
enum class Arrangement {
  plain,         // one to one
  heads_third,   // [B, S, H, D] in the file, [B, H, S, D] for the library
  leading_ones,  // [Sk], [Sq, Sk], ... are the last of four dimensions, as NumPy broadcasts
};

struct HostTensor {
  std::vector<int64_t> file_shape;
  std::vector<std::byte> bytes;
  Tensor view;  // absent if nothing was loaded
};

HostTensor zeros(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement);

// Load what the flag names (array_file.h), or an absent tensor if it was not given. Errors name the flag and the file.
HostTensor load_values(const char* flag, const std::string& file, DType type, Arrangement arrangement);
HostTensor load_mask(const char* flag, const std::string& file);
HostTensor load_lengths(const char* flag, const std::string& file);

// The float type of the array. Throws if it holds another type.
DType float_type_of(const char* flag, const std::string& file, const Array& array);
HostTensor to_tensor(const char* flag, const std::string& file, const Array& array, DType type,
                     Arrangement arrangement);

// A safetensors file gets the tensor's own type, a .npy file float64 for f64 and float32 for all others.
Array to_array(const HostTensor& tensor, FileFormat format);

}  // namespace cuflash::files
