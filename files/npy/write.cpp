#include "files/npy/header.h"
#include "files/npy/npy.h"

namespace cuflash::files {

// The start is magic, version 1.0, length of the header, and the header, padded so that the data begins at a multiple
// of 64.
std::string npy_start(const Array& array) {
  constexpr size_t kBefore = 10, kAlignment = 64;
  std::string text = npy_header_text(array.type, array.shape);
  text.resize((kBefore + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kBefore, ' ');
  text.back() = '\n';
  const auto length = static_cast<uint16_t>(text.size());
  std::string start("\x93NUMPY\x01\x00", 8);
  start += static_cast<char>(length & 0xff);
  start += static_cast<char>(length >> 8);
  return start + text;
}

}  // namespace cuflash::files
