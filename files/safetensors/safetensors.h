// Safetensors files, read as if every one of them came from an enemy: the length of a header, the header in JSON, and
// the data of all tensors without a gap.
#pragma once

#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/array.h"
#include "files/input_file.h"

namespace cuflash::files {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and no byte is turned here");

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // in the file's words, which may be none of ours
  std::optional<ElementType> type;  // what that means
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes of the data
};

// An open file whose header was found to be sound. Only a tensor that is asked for is read: large files hold thousands.
// Everything it throws is a FileError that names the file.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // in the order of their data
  const SafetensorsTensor* find(std::string_view name) const;                 // nullptr: there is none
  Array read(const SafetensorsTensor& tensor) const;

 private:
  std::string path_;
  InputFile file_;  // the data begins at its position
  std::vector<SafetensorsTensor> tensors_;
};

struct NamedArray {
  std::string name;
  const Array* array;
};
struct SafetensorsContent {
  std::string start;
  std::vector<const Array*> data;  // their bytes follow, in this order
};
SafetensorsContent safetensors_content(std::vector<NamedArray> arrays);

// Throws FileError for what cannot be the name of a tensor.
void require_tensor_name(const std::string& name);

}  // namespace cuflash::files
