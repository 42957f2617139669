// The JSON in front of a safetensors file's data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "files/safetensors/safetensors.h"

namespace cuflash::files {

constexpr int64_t kLongestSafetensorsHeader = 100'000'000;  // the limit that the format's own library set
constexpr std::string_view kMetadataKey = "__metadata__";  // not a tensor but a map of strings, which nobody here needs

const char* safetensors_dtype(ElementType type);  // "BF16"

// The tensors in the order of their data. Each has the bytes that its type and shape need, no two overlap, and together
// they cover the data from its first byte on. Throws FileError, without the name of the file.
std::vector<SafetensorsTensor> parse_safetensors_header(std::string_view text);

}  // namespace cuflash::files
