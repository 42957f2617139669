// Fuzzes the reader of safetensors files: it must reject the input with a sentence, or its tensors must be consistent,
// cover the data without a gap, and survive a round trip.
#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "files/safetensors/header.h"
#include "files/safetensors/safetensors.h"
#include "fuzz/input_holder.h"
#include "fuzz/made_files.h"
#include "fuzz/properties.h"
#include "fuzz/target.h"

namespace cuflash::fuzz {

namespace {

using made::length_text, made::object, made::safetensors, made::tensor;

constexpr size_t kLengthSize = 8;
constexpr int64_t kMaxData = 1 << 16;

uint64_t length_of(const std::string& input) {
  uint64_t length = 0;
  for (size_t n = 0; n < kLengthSize; ++n) length |= uint64_t{static_cast<unsigned char>(input.at(n))} << (8 * n);
  return length;
}
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return safetensors(object({tensor("q", dtype, shape, offsets)}), "0123456789abcdef");
}

// The tensors of a valid header, in the order of their data.
void require_covered(const std::vector<files::SafetensorsTensor>& tensors, int64_t data_size) {
  int64_t end = 0;
  std::set<std::string> names;
  for (const files::SafetensorsTensor& tensor : tensors) {
    require(tensor.begin == end && tensor.end >= end, "each tensor begins where the one before it ends");
    require(names.insert(tensor.name).second, "no name occurs twice");
    files::require_tensor_name(tensor.name);
    end = tensor.end;
  }
  require(end == data_size, "the tensors cover the data");
}

// Reads all tensors of known types.
std::deque<std::pair<std::string, files::Array>> read_all(const files::SafetensorsReader& reader,
                                                          const std::string& data) {
  std::deque<std::pair<std::string, files::Array>> arrays;
  for (const files::SafetensorsTensor& tensor : reader.tensors()) {
    const auto array = unless_refused([&] { return reader.read(tensor); });
    require(array.has_value() == tensor.type.has_value(), "a tensor is refused for its type alone");
    if (!array) continue;
    require_consistent(*array);
    const auto begin = static_cast<size_t>(tensor.begin), end = static_cast<size_t>(tensor.end);
    require(text_of_bytes(*array) == data.substr(begin, end - begin), "a tensor's bytes are those of the file");
    arrays.emplace_back(tensor.name, *array);
  }
  return arrays;
}

void require_round_trip(const MemoryFile& file, const std::deque<std::pair<std::string, files::Array>>& arrays) {
  std::vector<files::NamedArray> named;
  for (const auto& [name, array] : arrays) named.push_back({name, &array});
  const files::SafetensorsContent content = files::safetensors_content(std::move(named));
  require(content.start.size() % 8 == 0, "data begins aligned");
  std::string written = content.start;
  for (const files::Array* array : content.data) written += text_of_bytes(*array);
  file.hold(written);
  const files::SafetensorsReader back(file.path());
  require(back.tensors().size() == arrays.size(), "every tensor is read back");
  for (const auto& [name, array] : arrays) {
    const files::SafetensorsTensor* tensor = back.find(name);
    require(tensor != nullptr, "a name is read back");
    require_same(back.read(*tensor), array);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string three = object({tensor("q", "BF16", "[1,2,2]", "[0,8]"), tensor("k", "F32", "[1]", "[8,12]"),
                                    tensor("v", "F16", "[2]", "[12,16]")});
  std::vector<std::string> all{
      safetensors("{}", ""),
      safetensors(three, "0123456789abcdef"),
      safetensors(three + std::string(8 - three.size() % 8, ' '), "0123456789abcdef"),
      safetensors("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\\u20ac\\ud83d\\ude00\"}," +
                      tensor("\\\"\\\\\\/\\b\\f\\n\\r\\t\xe2\x82\xac", "I32", "[4]", "[0,16]") + "}",
                  "0123456789abcdef"),
      safetensors("{ \"q\" : {\n\t\"dtype\" : \"I8\" ,\r\n \"shape\" : [ 2 , 2 ] , \"data_offsets\" : [ 0 , 4 ] } }\n",
                  "data"),
      safetensors(object({tensor("e", "F64", "[0,3]", "[4,4]"), tensor("s", "U32", "[]", "[0,4]")}), "data"),
      safetensors(object({tensor("w", "F8_E4M3", "[3]", "[0,3]"), tensor("x", "U8", "[1]", "[3,4]")}), "data"),
      safetensors(object({tensor("a", "U8", "[2]", "[0,2]"), tensor("a", "U8", "[2]", "[2,4]")}), "data"),
      safetensors(object({tensor("a", "U8", "[3]", "[0,3]"), tensor("b", "U8", "[3]", "[1,4]")}), "data"),
      one("F32", "[4294967296,4294967296]", "[0,16]"),
      one("F32", "[0,4611686018427387904]", "[0,0]"),
      one("F32", "[-4]", "[0,16]"),
      one("F32", "[4.0]", "[0,16]"),
      one("F32", "[3]", "[4,16]"),
      length_text(~uint64_t{0}) + "{}"};
  for (const char* dtype : {"BOOL", "I8", "U8"}) all.push_back(one(dtype, "[16]", "[0,16]"));
  for (const char* dtype : {"I16", "U16", "F16", "BF16"}) all.push_back(one(dtype, "[2,4]", "[0,16]"));
  for (const char* dtype : {"I64", "U64", "F64"}) all.push_back(one(dtype, "[1,2,1]", "[0,16]"));
  return all;
}

std::vector<std::string> words() {
  return {"\"dtype\":",
          "\"shape\":",
          "\"data_offsets\":",
          "\"__metadata__\":{\"a\":\"b\"},",
          "\"BF16\"",
          "\"F64\"",
          "\"BOOL\"",
          "\"U8\"",
          "[]",
          "[0,0]",
          "[0]",
          "[2,2]",
          "[0,16]",
          "[16,16]",
          "\\u0041",
          "\\ud83d\\ude00",
          "\\n",
          "\xe2\x82\xac",
          "\xed\xa0",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "9223372036854775807",
          "4294967296",
          "-1",
          "1e3",
          tensor("e", "U8", "[0]", "[0,0]") + ",",
          tensor("e", "I16", "[1]", "[16,18]") + ","};
}

void repair(std::string& input) {
  const size_t end = input.rfind('}');
  if (end == std::string::npos || end < kLengthSize) return;
  const size_t length = end + 1 - kLengthSize;
  input.replace(0, kLengthSize, length_text(length));
  try {
    const auto tensors = files::parse_safetensors_header(std::string_view(input).substr(kLengthSize, length));
    const int64_t data = tensors.empty() ? 0 : tensors.back().end;
    if (data <= kMaxData) input.resize(end + 1 + static_cast<size_t>(data), 'x');
  } catch (const files::FileError&) {
    // An invalid header says nothing about the data.
  }
}

bool check(const std::string& input) {
  static const MemoryFile file;
  file.hold(input);
  const auto reader = unless_refused([&] { return std::make_unique<files::SafetensorsReader>(file.path()); });
  if (!reader) return false;
  require(length_of(input) <= input.size() - kLengthSize, "the header is inside of the file");
  const std::string data = input.substr(kLengthSize + length_of(input));
  require_covered((*reader)->tensors(), static_cast<int64_t>(data.size()));
  require_round_trip(file, read_all(**reader, data));
  return true;
}

}  // namespace cuflash::fuzz
