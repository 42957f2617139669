// The part of JSON that the header of a safetensors file is made of: strings, and whole numbers that are not negative.
#pragma once

#include <string>
#include <string_view>

#include "cli/scanner.h"

namespace cuflash::cli {

// Its text must be UTF-8, and then so is every string.
class JsonScanner : public Scanner {
 public:
  using Scanner::Scanner;

  std::string string();
  int64_t number(const char* what);

 private:
  uint32_t escaped_unit();       // four hexadecimal digits
  uint32_t escaped_character();  // what follows the backslash
};

std::string json_string(std::string_view text);  // with its quotation marks

}  // namespace cuflash::cli
