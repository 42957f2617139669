// The header of a .npy file: a Python dictionary with three keys.
#pragma once

#include "files/array.h"

#include <string>
#include <string_view>

namespace cuflash::files {

struct NpyHeader {
  ElementType type = ElementType::f32;
  bool swap_bytes = false;  // the file's byte order is not this machine's
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Throws FileError, without the name of the file.
NpyHeader parse_npy_header(std::string_view text);
std::string npy_header_text(ElementType type, const std::vector<int64_t>& shape);

}  // namespace cuflash::files
