#include "files/text/scanner.h"

#include "files/error.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

char Scanner::peek() {
  const size_t begin = rest_.find_first_not_of(" \t\r\n");
  rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  return rest_.empty() ? '\0' : rest_.front();
}

bool Scanner::take(char expected) {
  if (peek() != expected || rest_.empty()) return false;
  rest_.remove_prefix(1);
  return true;
}

void Scanner::expect(char expected, const char* where) {
  if (!take(expected)) fail(join("expected '", expected, "' ", where));
}

bool Scanner::take_word(std::string_view word) {
  peek();
  if (!rest_.starts_with(word)) return false;
  rest_.remove_prefix(word.size());
  return true;
}

int64_t Scanner::whole_number(const char* what) {
  if (peek() == '-') fail(join(what, " is negative"));
  if (rest_.empty() || !is_digit(rest_.front())) fail("expected a whole number");
  int64_t value = 0;
  for (; !rest_.empty() && is_digit(rest_.front()); rest_.remove_prefix(1)) {
    if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
        __builtin_add_overflow(value, int64_t{rest_.front() - '0'}, &value)) {
      fail(join(what, " does not fit in 63 bits"));
    }
  }
  return value;
}

bool Scanner::at_end() {
  peek();
  return rest_.empty();
}

void Scanner::fail(const std::string& reason) const {
  throw FileError(join(what_, " is broken: ", reason, " at ", rest_.empty() ? "its end" : in_quotes(rest_)));
}

}  // namespace cuflash::files
