// A pull parser for JSON: the caller asks for the value it expects next.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "files/text/scanner.h"
#include "support/text.h"

namespace cuflash::files {

// The text must be UTF-8; then so is every string.
class JsonScanner : public Scanner {
 public:
  using Scanner::Scanner;

  std::string string();
  int64_t number(const char* what);  // whole, and not negative
  double decimal(const char* what);  // finite
  bool boolean(const char* what);
  void skip();  // a value of any kind

  // Calls value_of(key) at each value of an object, and refuses duplicate keys. Returns the keys.
  template <class ValueOf>
  std::set<std::string> object(const char* what, ValueOf value_of) {
    expect('{', join("at the start of ", what).c_str());
    std::set<std::string> seen;
    if (take('}')) return seen;
    do {
      const auto [key, is_new] = seen.insert(string());
      if (!is_new) fail(join("key ", in_quotes(*key), " occurs twice in ", what));
      expect(':', "after a key");
      value_of(*key);
    } while (take(','));
    expect('}', join("or ',' after a value in ", what).c_str());
    return seen;
  }

 private:
  uint32_t escaped_unit();       // four hexadecimal digits
  uint32_t escaped_character();  // after the backslash
};

std::string json_string(std::string_view text);  // with quotation marks

}  // namespace cuflash::files
