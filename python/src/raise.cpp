#include "raise.h"

#include <nanobind/nanobind.h>

#include <cctype>
#include <string>

namespace cuflash::python {
namespace {

std::string_view python_name(std::string_view word, Words words) {
  if (word == "o") return "out";
  if (words == Words::attention) return word;
  if (word == "k") return "k_cache";
  if (word == "v") return "v_cache";
  if (word == "k_new") return "k";
  if (word == "v_new") return "v";
  if (word == "seqlens") return "cache_seqlens";
  if (word == "batch_idx") return "cache_batch_idx";
  return word == "leftpad" ? "cache_leftpad" : word;
}

std::string in_python_words(std::string_view message, Words words) {
  const auto is_part_of_a_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  std::string text;
  for (size_t n = 0; n < message.size();) {
    size_t end = n;
    while (end < message.size() && is_part_of_a_word(message[end])) ++end;
    text += python_name(message.substr(n, end - n), words);
    if (end < message.size()) text += message[end];
    n = end + 1;
  }
  return text;
}

PyObject* exception_of(cuflash_status status) {
  if (status == CUFLASH_INVALID_ARGUMENT) return PyExc_ValueError;
  return status == CUFLASH_OUT_OF_MEMORY ? PyExc_MemoryError : PyExc_RuntimeError;
}

}  // namespace

void raise_error(cuflash_status status, std::string_view message, Wording wording) {
  std::string text = in_python_words(message, wording.words);
  if (status == CUFLASH_INVALID_ARGUMENT && wording.layout == "bshd")
    text += " (dimensions are counted as [batch, heads, length, dim])";
  PyErr_SetString(exception_of(status), text.c_str());
  throw nanobind::python_error();
}

void check(cuflash_status status, Wording wording) {
  if (status != CUFLASH_OK) raise_error(status, cuflash_last_error(), wording);
}

}  // namespace cuflash::python
