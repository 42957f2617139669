// Fuzzes the reader of .npy files: it must reject the input with a sentence, or the array must be consistent and
// survive a round trip.
#include <cstdint>

#include "files/npy/header.h"
#include "files/npy/npy.h"
#include "fuzz/input_holder.h"
#include "fuzz/made_files.h"
#include "fuzz/properties.h"
#include "fuzz/target.h"

namespace cuflash::fuzz {

namespace {

using made::header, made::npy;

constexpr size_t kMaxData = 1 << 16;

}  // namespace

std::vector<std::string> seeds() {
  const std::string data = "0123456789abcdef";
  std::vector<std::string> all{npy("", ""),
                               npy(header("<f4", "()"), "data"),
                               npy(header("<f4", "(3, 0, 2)"), ""),
                               npy(header("<i2", "(2, 4)", "True"), data),
                               npy(header(">f8", "(1, 2)", "True"), data),
                               npy(header("<f2", "(2L, 2L, 2L)"), data),
                               npy("  { \"shape\" : ( 4 ) , \"descr\" : \"<f4\" , \"fortran_order\" : False }  ", data),
                               npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (4,)}", data),
                               npy(header("|O", "(2,)"), data),
                               npy(header("|V2", "(8,)"), data),
                               npy(header("<f4", "(4294967296, 4294967296)"), data),
                               npy(header("<f4", "(0, 4611686018427387904)"), ""),
                               npy(header("<f4", "(99999999999999999999,)"), data),
                               npy(header("<f4", "(-4,)"), data)};
  for (const char version : {1, 2, 3}) all.push_back(npy(header("<f4", "(2, 2)"), data, version));
  for (const char* descr : {"|b1", "|i1", "|u1"}) all.push_back(npy(header(descr, "(16,)"), data));
  for (const char* descr : {"<i4", "<u2", ">u4", "<i8", "<u8"}) all.push_back(npy(header(descr, "(1, 2)"), data));
  return all;
}

std::vector<std::string> words() {
  return {"'descr'",
          "'fortran_order'",
          "'shape'",
          "True",
          "False",
          "'<f4'",
          "'>f8'",
          "'<f2'",
          "'|b1'",
          "'|u1'",
          "'>i2'",
          "'|O'",
          "'|V2'",
          "()",
          "(0,)",
          "(2, 2)",
          "[(",
          "9223372036854775807",
          "4294967296",
          "L",
          "-",
          "{",
          "}",
          ", ",
          ": ",
          "\n",
          std::string("\x93NUMPY\x03\0", 8)};
}

void repair(std::string& input) {
  constexpr size_t kVersionAt = 6, kLengthAt = 8;
  if (input.size() <= kLengthAt + 4) return;
  const size_t length_size = input[kVersionAt] == 1 ? 2 : 4;
  const size_t begin = kLengthAt + length_size, end = input.rfind('}');
  if (end == std::string::npos || end < begin) return;
  const size_t length = end + 1 - begin;
  for (size_t n = 0; n < length_size; ++n) input[kLengthAt + n] = static_cast<char>(length >> (8 * n) & 0xff);
  try {
    const files::NpyHeader found = files::parse_npy_header(std::string_view(input).substr(begin, length));
    const auto bytes = static_cast<size_t>(files::data_bytes(found.type, found.shape));
    if (bytes <= kMaxData) input.resize(begin + length + bytes, 'x');
  } catch (const files::FileError&) {
    // An invalid header says nothing about the data.
  }
}

bool check(const std::string& input) {
  static const MemoryFile file;
  file.hold(input);
  const std::optional<files::Array> array = unless_refused([&] { return files::read_npy(file.path()); });
  if (!array) return false;
  require_consistent(*array);
  require(array->bytes.size() <= input.size(), "no byte is read that the file does not have");
  const std::string start = files::npy_start(*array);
  require(start.size() % 64 == 0, "data begins aligned");
  file.hold(start + text_of_bytes(*array));
  require_same(files::read_npy(file.path()), *array);
  return true;
}

}  // namespace cuflash::fuzz
