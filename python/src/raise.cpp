#include "raise.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace cuflash::python {
namespace {

std::string_view python_name(std::string_view word, Words words) {
  if (word == "o") return "out";
  if (words == Words::attention) return word;
  if (word == "k") return "k_cache";
  if (word == "v") return "v_cache";
  if (word == "k_new") return "k";
  if (word == "v_new") return "v";
#define CUFLASH_RENAME(name, member) \
  if (word == #member) return #name;
  CUFLASH_CACHE_ARRAYS(CUFLASH_RENAME, CUFLASH_NOTHING)
#undef CUFLASH_RENAME
  return word;
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

// The argument that a message begins with, under the library's name; "" if it begins with something else.
std::string_view subject_of(std::string_view message) {
  const size_t colon = message.find(':');
  return colon == message.npos ? std::string_view() : message.substr(0, colon);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Whether the array has heads and rows in the order of the layout. The order of a bias, a mask and lse is fixed.
bool has_rows(std::string_view name) {
  return is_one_of(name, {"q", "k", "v", "o", "dout", "dq", "dk", "dv", "k_new", "v_new", "o_a", "o_b"});
}

// Swaps b and c of "[a, b, c, d]" if the brackets at `begin` have four elements. Returns the position after them.
size_t swap_in_list(std::string& text, size_t begin) {
  const size_t end = text.find(']', begin);
  if (end == text.npos) return text.size();
  std::vector<std::string> elements;
  for (size_t n = begin + 1; n <= end;) {
    const size_t comma = std::min(text.find(", ", n), end);
    elements.push_back(text.substr(n, comma - n));
    n = comma + 2;
  }
  if (elements.size() == 4) {
    const std::string list = elements[0] + ", " + elements[2] + ", " + elements[1] + ", " + elements[3];
    text.replace(begin + 1, end - begin - 1, list);
  }
  return end + 1;
}

// The message for layout "bshd": the library sees [batch, heads, length, dim], and its messages use that order.
std::string in_order_of_bshd(std::string text) {
  for (size_t n = text.find('['); n < text.size(); n = text.find('[', n)) n = swap_in_list(text, n);
  constexpr std::string_view dimension = "dimension ";
  for (size_t n = text.find(dimension); n != text.npos; n = text.find(dimension, n)) {
    n += dimension.size();
    if (n < text.size() && (text[n] == '1' || text[n] == '2')) text[n] = text[n] == '1' ? '2' : '1';
  }
  return text;
}

std::string with_packing(std::string text, std::string_view subject, Packing packing) {
  if (text.find(": is missing") == subject.size()) return text;
  const bool is_part = packing == Packing::qkv  ? is_one_of(subject, {"q", "k", "v"})
                       : packing == Packing::kv ? is_one_of(subject, {"k", "v"})
                                                : false;
  if (is_part) text.insert(subject.size(), packing == Packing::kv ? " (a part of kv)" : " (a part of qkv)");
  return text;
}

PyObject* exception_of(cuflash_status status) {
  if (status == CUFLASH_INVALID_ARGUMENT) return PyExc_ValueError;
  return status == CUFLASH_OUT_OF_MEMORY ? PyExc_MemoryError : PyExc_RuntimeError;
}

}  // namespace

void raise_error(cuflash_status status, std::string_view message, Wording wording) {
  std::string text(message);
  const std::string_view subject = subject_of(message);
  if (wording.layout == "bshd" && has_rows(subject)) text = in_order_of_bshd(std::move(text));
  text = with_packing(std::move(text), subject, wording.packing);
  text = in_python_words(text, wording.words);
  PyErr_SetString(exception_of(status), text.c_str());
  throw nanobind::python_error();
}

void check(cuflash_status status, Wording wording) {
  if (status != CUFLASH_OK) raise_error(status, cuflash_last_error(), wording);
}

}  // namespace cuflash::python
