// Reads the text of a file, or of its header, from left to right. It never recurses, so that no text can exhaust the stack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cuflash::files {

class Scanner {
 public:
  explicit Scanner(std::string_view text, const char* what = "its header") : rest_(text), what_(what) {}

  char peek();  // '\0' at the end
  bool take(char expected);
  void expect(char expected, const char* where);
  bool take_word(std::string_view word);
  int64_t whole_number(const char* what);  // only digits; `what` names it in errors
  bool at_end();
  // Throws FileError, without the name of the file, with the text at which reading stopped.
  [[noreturn]] void fail(const std::string& reason) const;

 protected:
  std::string_view rest_;

 private:
  const char* what_;  // names the text being read in messages
};

}  // namespace cuflash::files
