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

void check(cuflash_status status, std::string_view layout) {
  if (status == CUFLASH_OK) return;
  std::string message = in_python_words(cuflash_last_error());
  if (status == CUFLASH_INVALID_ARGUMENT && layout == "bshd")
    message += " (dimensions are counted as [batch, heads, length, dim])";
  PyErr_SetString(exception_of(status), message.c_str());
  throw nanobind::python_error();
}

}  // namespace cuflash::python
