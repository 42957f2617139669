#include "files/text/utf8.h"

namespace cuflash::files {

namespace {

// Bytes of the first character; 0 if the text does not begin with a valid one.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  // The range of the second byte excludes overlong forms, surrogates and everything above U+10FFFF.
  const unsigned lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (size_t n = 2; n < length; ++n) {
    if ((byte(n) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto append = [&](uint32_t byte) { text += static_cast<char>(byte); };
  const auto append_six_bits = [&](int from) { append(0x80 | (code_point >> from & 0x3f)); };
  if (code_point < 0x80) return append(code_point);
  if (code_point < 0x800) {
    append(0xc0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    append(0xe0 | code_point >> 12);
    append_six_bits(6);
  } else {
    append(0xf0 | code_point >> 18);
    append_six_bits(12);
    append_six_bits(6);
  }
  append_six_bits(0);
}

}  // namespace cuflash::files
