#include "raise.h"

#include <nanobind/nanobind.h>

#include <cctype>
#include <string>

namespace cuflash::python {
namespace {

// The library calls "o" what is "out" in Python.
std::string in_python_words(std::string_view message) {
  const auto is_part_of_a_word = [&](size_t n) {
    return n < message.size() && (std::isalnum(static_cast<unsigned char>(message[n])) || message[n] == '_');
  };
  std::string text;
  for (size_t n = 0; n < message.size(); ++n) {
    const bool alone = message[n] == 'o' && !is_part_of_a_word(n - 1) && !is_part_of_a_word(n + 1);
    text += alone ? "out" : std::string(1, message[n]);
  }
  return text;
}

PyObject* exception_of(cuflash_status status) {
  if (status == CUFLASH_INVALID_ARGUMENT) return PyExc_ValueError;
  return status == CUFLASH_OUT_OF_MEMORY ? PyExc_MemoryError : PyExc_RuntimeError;
}

}  // namespace

void raise_error(cuflash_status status, std::string_view message, std::string_view layout) {
  std::string text = in_python_words(message);
  if (status == CUFLASH_INVALID_ARGUMENT && layout == "bshd")
    text += " (dimensions are counted as [batch, heads, length, dim])";
  PyErr_SetString(exception_of(status), text.c_str());
  throw nanobind::python_error();
}

void check(cuflash_status status, std::string_view layout) {
  if (status != CUFLASH_OK) raise_error(status, cuflash_last_error(), layout);
}

}  // namespace cuflash::python
