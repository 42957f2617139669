// Properties that hold for any input of a reader.
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "files/array.h"
#include "files/error.h"

namespace cuflash::fuzz {

// Ends the program in a way that both libFuzzer and the driver notice.
inline void require(bool holds, const std::string& property) {
  if (!holds) throw std::logic_error("this does not hold: " + property);
}

// A refusal is one sentence that can be printed to a terminal; anything else that is thrown ends the program.
inline void require_sentence(const std::string& message) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  require(message.starts_with("cannot read '"), "a refusal names the file: " + message);
  require(std::all_of(message.begin(), message.end(), printable), "a refusal can be printed");
  require(message.size() < 2000, "a refusal is short");  // it may hold a shape of 64 numbers
}

// The result of `read`, or nothing if it refuses.
template <class Read>
auto unless_refused(Read read) -> std::optional<decltype(read())> {
  try {
    return std::optional<decltype(read())>(std::in_place, read());
  } catch (const files::FileError& error) {
    require_sentence(error.what());
    return std::nullopt;
  }
}

inline void require_consistent(const files::Array& array) {
  require(array.shape.size() <= files::kMaxDimensions, "at most 64 dimensions");
  for (const int64_t extent : array.shape) require(extent >= 0, "no extent is negative");
  const auto size = static_cast<int64_t>(array.bytes.size());
  require(size == array.count() * files::size_of(array.type), "an array has the bytes of its elements");
  require(size == files::data_bytes(array.type, array.shape), "an array has the bytes that its shape needs");
}

inline void require_same(const files::Array& a, const files::Array& b) {
  require(a.type == b.type && a.shape == b.shape && a.bytes == b.bytes, "what is written is read back");
}

inline std::string text_of_bytes(const files::Array& array) {
  return {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()};
}

}  // namespace cuflash::fuzz
