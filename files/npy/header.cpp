#include "files/npy/header.h"

#include <algorithm>
#include <array>
#include <bit>

#include "files/error.h"
#include "files/text/scanner.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

constexpr char kNativeOrder = std::endian::native == std::endian::little ? '<' : '>';

struct TypeRow {
  ElementType type;
  std::string_view code;
};
constexpr std::array<TypeRow, 12> kTypes{{{ElementType::boolean, "b1"},
                                          {ElementType::i8, "i1"},
                                          {ElementType::i16, "i2"},
                                          {ElementType::i32, "i4"},
                                          {ElementType::i64, "i8"},
                                          {ElementType::u8, "u1"},
                                          {ElementType::u16, "u2"},
                                          {ElementType::u32, "u4"},
                                          {ElementType::u64, "u8"},
                                          {ElementType::f16, "f2"},
                                          {ElementType::f32, "f4"},
                                          {ElementType::f64, "f8"}}};

// The small part of Python's syntax that headers use.
class PythonScanner : public Scanner {
 public:
  using Scanner::Scanner;

  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("expected a string");
    const size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return value;
  }
  int64_t extent() {
    const int64_t value = whole_number("a dimension");
    take('L');  // Python 2 wrote long integers like this
    return value;
  }
};

std::vector<int64_t> parse_shape(PythonScanner& scanner) {
  std::vector<int64_t> shape;
  scanner.expect('(', "before the shape");
  bool comma = true;  // (3) is a number in Python, but old writers meant a shape by it
  while (!scanner.take(')')) {
    if (!comma) scanner.fail("expected ',' or ')' in the shape");
    if (shape.size() == kMaxDimensions) scanner.fail(join("the shape has more than ", kMaxDimensions, " dimensions"));
    shape.push_back(scanner.extent());
    comma = scanner.take(',');
  }
  return shape;
}

bool parse_bool(PythonScanner& scanner) {
  if (scanner.take_word("True")) return true;
  if (scanner.take_word("False")) return false;
  scanner.fail("expected True or False");
}

void parse_type(std::string_view descr, NpyHeader& header) {
  const auto way_out = "save it as float16, float32 or float64 (bool or an integer for masks and lengths)";
  if (descr.find('O') != std::string_view::npos) {
    throw FileError(join("it holds Python objects (dtype ", in_quotes(descr), "), which are never loaded; ", way_out));
  }
  const bool has_order = !descr.empty() && std::string_view("<>|").find(descr.front()) != std::string_view::npos;
  const std::string_view code = descr.substr(has_order ? 1 : 0);
  const auto row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return code == r.code; });
  const bool order_known = has_order && (descr.front() != '|' || (row != kTypes.end() && size_of(row->type) == 1));
  if (row == kTypes.end() || !order_known) {
    const bool perhaps_bf16 = code == "V2";
    throw FileError(
        join("its dtype ", in_quotes(descr), " is not supported; ",
             perhaps_bf16 ? "NumPy has no bfloat16: save it as float32 and pass --dtype bf16, or in a .safetensors file"
                          : way_out));
  }
  header.type = row->type;
  header.swap_bytes = size_of(row->type) > 1 && descr.front() != kNativeOrder;
}

void parse_value(PythonScanner& scanner, std::string_view key, NpyHeader& header) {
  if (key == "descr") {
    if (scanner.peek() == '[') {
      throw FileError("it holds structured records; save each field as its own array");
    }
    parse_type(scanner.string(), header);
  } else if (key == "fortran_order") {
    header.fortran_order = parse_bool(scanner);
  } else {
    header.shape = parse_shape(scanner);
  }
}

}  // namespace

NpyHeader parse_npy_header(std::string_view text) {
  constexpr std::array<std::string_view, 3> kKeys{"descr", "fortran_order", "shape"};
  std::array<bool, kKeys.size()> seen{};
  NpyHeader header;
  PythonScanner scanner(text);
  scanner.expect('{', "at the start of the dictionary");
  while (!scanner.take('}')) {
    const std::string_view key = scanner.string();
    const auto known = std::find(kKeys.begin(), kKeys.end(), key);
    if (known == kKeys.end()) scanner.fail(join("unknown key ", in_quotes(key)));
    bool& key_seen = seen[static_cast<size_t>(known - kKeys.begin())];
    if (key_seen) scanner.fail(join("key ", in_quotes(key), " occurs twice"));
    key_seen = true;
    scanner.expect(':', "after a key");
    parse_value(scanner, key, header);
    if (!scanner.take(',') && scanner.peek() != '}') scanner.fail("expected ',' or '}' after a value");
  }
  for (size_t n = 0; n < kKeys.size(); ++n) {
    if (!seen[n]) scanner.fail(join("key '", kKeys[n], "' is missing"));
  }
  if (!scanner.at_end()) scanner.fail("text after the dictionary");
  return header;
}

std::string npy_header_text(ElementType type, const std::vector<int64_t>& shape) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.type == type; });
  if (row == kTypes.end()) {
    throw FileError(join("a .npy file cannot hold ", name_of(type), "; write it to a .safetensors file"));
  }
  std::string extents;
  for (const int64_t extent : shape) extents += std::to_string(extent) + ", ";
  const char order = size_of(type) == 1 ? '|' : kNativeOrder;
  return join("{'descr': '", order, row->code, "', 'fortran_order': False, 'shape': (", extents, "), }");
}

}  // namespace cuflash::files
