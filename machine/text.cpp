#include "machine/text.h"

#include <array>
#include <iomanip>
#include <sstream>
#include <system_error>

namespace cuflash::cli {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + "]";
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string system_message(int error) { return std::generic_category().message(error); }

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
  return join(fixed(bytes, unit == 0 || bytes >= 100 ? 0 : 1), " ", kUnits[unit]);
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::ostringstream out;
  out << "'";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      out << c;
    } else {
      out << "\\x" << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(static_cast<unsigned char>(c));
    }
  }
  out << (text.size() > kLongest ? "...'" : "'");
  return out.str();
}

}  // namespace cuflash::cli
