#include "files/text/json.h"

#include <charconv>

#include "files/text/utf8.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < ' '; }

}  // namespace

uint32_t JsonScanner::escaped_unit() {
  constexpr size_t kDigits = 4;
  uint32_t value = 0;
  const std::string_view digits = rest_.substr(0, kDigits);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + kDigits) fail("expected four hexadecimal digits after \\u");
  rest_.remove_prefix(kDigits);
  return value;
}

uint32_t JsonScanner::escaped_character() {
  constexpr std::string_view kShort = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
  const size_t known = rest_.empty() ? std::string_view::npos : kShort.find(rest_.front());
  if (known != std::string_view::npos) {
    rest_.remove_prefix(1);
    return static_cast<unsigned char>(kMeaning[known]);
  }
  if (!rest_.starts_with('u')) fail("unknown escape in a string");
  rest_.remove_prefix(1);
  const uint32_t unit = escaped_unit();
  if (unit < 0xd800 || unit > 0xdfff) return unit;
  // A character beyond U+FFFF is a pair of surrogates, the high one first.
  if (unit > 0xdbff || !rest_.starts_with("\\u")) fail("half of a surrogate pair in a string");
  rest_.remove_prefix(2);
  const uint32_t low = escaped_unit();
  if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair in a string");
  return 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
}

std::string JsonScanner::string() {
  expect('"', "at the start of a string");
  std::string value;
  while (!rest_.starts_with('"')) {
    if (rest_.empty()) fail("a string does not end");
    if (is_control(rest_.front())) fail("a control character in a string");
    const bool escape = rest_.front() == '\\';
    if (!escape) value += rest_.front();
    rest_.remove_prefix(1);
    if (escape) append_utf8(value, escaped_character());
  }
  rest_.remove_prefix(1);
  return value;
}

int64_t JsonScanner::number(const char* what) {
  peek();
  const JsonScanner at_number = *this;
  const int64_t value = whole_number(what);
  const bool leading_zero = at_number.rest_.starts_with('0') && at_number.rest_.size() - rest_.size() > 1;
  if (leading_zero || rest_.starts_with('.') || rest_.starts_with('e') || rest_.starts_with('E')) {
    at_number.fail(join(what, " must be a whole number of digits only, without leading zeros"));
  }
  return value;
}

double JsonScanner::decimal(const char* what) {
  peek();
  const size_t sign = rest_.starts_with('-');  // from_chars reads inf and nan too
  const bool is_number = rest_.size() > sign && rest_[sign] >= '0' && rest_[sign] <= '9';
  double value = 0;
  const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
  if (!is_number || error != std::errc()) fail(join(what, " must be a number that fits in 64 bits"));
  rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
  return value;
}

bool JsonScanner::boolean(const char* what) {
  if (take_word("true")) return true;
  if (!take_word("false")) fail(join(what, " must be true or false"));
  return false;
}

void JsonScanner::skip() {
  std::string open;  // the closing brackets of the enclosing objects and arrays
  const auto key = [this] { string(), expect(':', "after a key"); };
  do {
    if (take('{')) {
      open += '}';
      if (peek() != '}') {
        key();
        continue;
      }
    } else if (take('[')) {
      open += ']';
      if (peek() != ']') continue;
    } else if (peek() == '"') {
      string();
    } else if (!take_word("null") && !take_word("true") && !take_word("false")) {
      decimal("a value");
    }
    while (!open.empty() && !take(',')) {
      expect(open.back(), "or ',' after a value");
      open.pop_back();
    }
    if (!open.empty() && open.back() == '}') key();
  } while (!open.empty());
}

std::string json_string(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      json += "\\u00";
      json += kHex[static_cast<size_t>(c) >> 4];
      json += kHex[static_cast<size_t>(c) & 0xf];
    } else {
      if (c == '"' || c == '\\') json += '\\';
      json += c;
    }
  }
  return json + '"';
}

}  // namespace cuflash::files
