// Hand-written files of tensors, valid or not, for tests and as fuzz seeds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace cuflash::made {

// .npy
inline std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string file("\x93NUMPY", 6);
  file += version;
  file += '\0';
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte)
    file += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  return file + header + data;
}
inline std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

// .safetensors
inline std::string length_text(uint64_t length) {
  std::string bytes;
  for (int n = 0; n < 8; ++n) bytes += static_cast<char>(length >> (8 * n) & 0xff);
  return bytes;
}
inline std::string safetensors(const std::string& header, const std::string& data) {
  return length_text(header.size()) + header + data;
}
inline std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                          const std::string& offsets) {
  return join("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}");
}
// A header with these tensors.
inline std::string object(const std::vector<std::string>& tensors) {
  std::string text = "{";
  for (const std::string& one : tensors) text.append(text.size() > 1 ? "," : "").append(one);
  return text.append("}");
}

}  // namespace cuflash::made
