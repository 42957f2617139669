// Safetensors files: the length of a header, the header in JSON, and the data of all tensors without a gap. The reader
// trusts nothing in them.
#pragma once

#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/array.h"
#include "files/input_file.h"

namespace cuflash::files {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and bytes are not swapped here");

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // as the file spells it; may be unknown
  std::optional<ElementType> type;  // the type named by dtype, if known
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // offsets into the data
};

// An open file with a valid header. Tensors are read on request, since large files hold thousands. Every FileError it throws
// names the file.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // in the order of their data
  const SafetensorsTensor* find(std::string_view name) const;                 // nullptr if there is none
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

// Throws FileError for an invalid name.
void require_tensor_name(const std::string& name);

}  // namespace cuflash::files
