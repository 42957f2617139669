// The JSON header of a safetensors file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "files/safetensors/safetensors.h"

namespace cuflash::files {

constexpr int64_t kLongestSafetensorsHeader = 100'000'000;  // the limit of the format's own library
constexpr std::string_view kMetadataKey = "__metadata__";   // a map of strings, not a tensor; ignored

const char* safetensors_dtype(ElementType type);  // "BF16"

// The tensors in the order of their data. Each has as many bytes as its type and shape need, and together they cover the
// data without gap or overlap. Throws FileError, without the name of the file.
std::vector<SafetensorsTensor> parse_safetensors_header(std::string_view text);

}  // namespace cuflash::files
