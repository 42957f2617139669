// Words for messages and tables. Inline, so that files/ and its fuzz targets build without the library.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "error.h"

namespace cuflash {

// "[2, 8, 128, 64]"
inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + "]";
}

inline std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits before the point
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits);
  return {text.data(), error == std::errc() ? end : text.data()};
}

// "1.5 MiB"
inline std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
  return join(fixed(bytes, unit == 0 || bytes >= 100 ? 0 : 1), " ", kUnits[unit]);
}

// The system's message for an errno.
inline std::string system_message(int error) { return std::generic_category().message(error); }

// The first 60 characters of a text of unknown origin, safe to print to a terminal. (A function named "quoted" would
// lose to std::quoted when called with a string, and that one prints escape codes.)
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string quoted = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c >= ' ' && c <= '~') quoted += c;
    else quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 0xf]};
  }
  return quoted + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace cuflash
