// The text in front of a .npy file's data: a Python dictionary with three keys.
#pragma once

#include "cli/npy.h"

#include <string>
#include <string_view>

namespace cuflash::cli {

struct NpyHeader {
  NpyType type = NpyType::f32;
  bool swap_bytes = false;  // the file's byte order is not this machine's
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Throws UsageError, without the name of the file.
NpyHeader parse_npy_header(std::string_view text);
std::string npy_header_text(NpyType type, const std::vector<int64_t>& shape);

// Bytes of an array of that shape. Throws UsageError where they, or any product of the extents, do not fit in 63 bits.
int64_t npy_data_bytes(NpyType type, const std::vector<int64_t>& shape);

}  // namespace cuflash::cli
