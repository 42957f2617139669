#include "cli/npy_header.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cli/exit.h"
#include "cli/text.h"

namespace cuflash::cli {

namespace {

constexpr size_t kMostDimensions = 64;  // NumPy's own limit
constexpr char kNativeOrder = std::endian::native == std::endian::little ? '<' : '>';

struct TypeRow {
  NpyType type;
  const char* code;
  const char* name;
  int64_t size;
};
constexpr std::array<TypeRow, 12> kTypes{{{NpyType::boolean, "b1", "bool", 1},
                                          {NpyType::i8, "i1", "int8", 1},
                                          {NpyType::i16, "i2", "int16", 2},
                                          {NpyType::i32, "i4", "int32", 4},
                                          {NpyType::i64, "i8", "int64", 8},
                                          {NpyType::u8, "u1", "uint8", 1},
                                          {NpyType::u16, "u2", "uint16", 2},
                                          {NpyType::u32, "u4", "uint32", 4},
                                          {NpyType::u64, "u8", "uint64", 8},
                                          {NpyType::f16, "f2", "float16", 2},
                                          {NpyType::f32, "f4", "float32", 4},
                                          {NpyType::f64, "f8", "float64", 8}}};

const TypeRow& row_of(NpyType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.type == type; });
}

// Reads the small part of Python's syntax that a header uses. It never recurses, so no text can exhaust the stack.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  char peek() {
    skip_space();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char expected) {
    if (rest_.empty() || peek() != expected) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char expected, const char* where) {
    if (!take(expected)) fail(join("expected '", expected, "' ", where));
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
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
    if (peek() == '-') fail("a dimension is negative");
    if (rest_.empty() || !is_digit(rest_.front())) fail("expected a whole number");
    int64_t value = 0;
    for (; !rest_.empty() && is_digit(rest_.front()); rest_.remove_prefix(1)) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{rest_.front() - '0'}, &value)) {
        fail("a dimension does not fit in 63 bits");
      }
    }
    take('L');  // Python 2 wrote long integers so
    return value;
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }
  [[noreturn]] void fail(const std::string& reason) const {
    throw UsageError(join("its header is broken: ", reason, " at ", quoted(rest_)));
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  void skip_space() {
    const size_t begin = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  }

  std::string_view rest_;
};

std::vector<int64_t> parse_shape(Scanner& scanner) {
  std::vector<int64_t> shape;
  scanner.expect('(', "before the shape");
  bool comma = true;  // (3) is a number in Python, but old writers meant a shape by it
  while (!scanner.take(')')) {
    if (!comma) scanner.fail("expected ',' or ')' in the shape");
    if (shape.size() == kMostDimensions) scanner.fail(join("the shape has more than ", kMostDimensions, " dimensions"));
    shape.push_back(scanner.extent());
    comma = scanner.take(',');
  }
  return shape;
}

bool parse_bool(Scanner& scanner) {
  if (scanner.take_word("True")) return true;
  if (scanner.take_word("False")) return false;
  scanner.fail("expected True or False");
}

void parse_type(std::string_view descr, NpyHeader& header) {
  const auto way_out = "save it as float16, float32 or float64 (bool or an integer for masks and lengths)";
  if (descr.find('O') != std::string_view::npos) {
    throw UsageError(join("it holds Python objects (dtype ", quoted(descr), "), which are never loaded; ", way_out));
  }
  const bool has_order = !descr.empty() && std::string_view("<>|").find(descr.front()) != std::string_view::npos;
  const std::string_view code = descr.substr(has_order ? 1 : 0);
  const auto row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return code == r.code; });
  const bool order_known = has_order && (descr.front() != '|' || (row != kTypes.end() && row->size == 1));
  if (row == kTypes.end() || !order_known) {
    const bool perhaps_bf16 = code == "V2";
    throw UsageError(join("its dtype ", quoted(descr), " is not supported; ",
                          perhaps_bf16 ? "NumPy has no bfloat16: save it as float32 and pass --dtype bf16" : way_out));
  }
  header.type = row->type;
  header.swap_bytes = row->size > 1 && descr.front() != kNativeOrder;
}

void parse_value(Scanner& scanner, std::string_view key, NpyHeader& header) {
  if (key == "descr") {
    if (scanner.peek() == '[') {
      throw UsageError("it holds structured records; save each field as an array of its own");
    }
    parse_type(scanner.string(), header);
  } else if (key == "fortran_order") {
    header.fortran_order = parse_bool(scanner);
  } else {
    header.shape = parse_shape(scanner);
  }
}

}  // namespace

const char* name_of(NpyType type) { return row_of(type).name; }
int64_t size_of(NpyType type) { return row_of(type).size; }
bool is_integer(NpyType type) { return type >= NpyType::i8 && type <= NpyType::u64; }

NpyHeader parse_npy_header(std::string_view text) {
  constexpr std::array<std::string_view, 3> kKeys{"descr", "fortran_order", "shape"};
  std::array<bool, kKeys.size()> seen{};
  NpyHeader header;
  Scanner scanner(text);
  scanner.expect('{', "at the start of the dictionary");
  while (!scanner.take('}')) {
    const std::string_view key = scanner.string();
    const auto known = std::find(kKeys.begin(), kKeys.end(), key);
    if (known == kKeys.end()) scanner.fail(join("unknown key ", quoted(key)));
    bool& key_seen = seen[static_cast<size_t>(known - kKeys.begin())];
    if (key_seen) scanner.fail(join("key ", quoted(key), " stands twice"));
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

std::string npy_header_text(NpyType type, const std::vector<int64_t>& shape) {
  std::string extents;
  for (const int64_t extent : shape) extents += std::to_string(extent) + ", ";
  const char order = size_of(type) == 1 ? '|' : kNativeOrder;
  return join("{'descr': '", order, row_of(type).code, "', 'fortran_order': False, 'shape': (", extents, "), }");
}

int64_t npy_data_bytes(NpyType type, const std::vector<int64_t>& shape) {
  // A zero among the extents makes the array empty but not the products of the others, which become strides.
  int64_t bytes = size_of(type);
  bool empty = false;
  for (const int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) {
      throw UsageError(join("its shape ", shape_text(shape), " is larger than any memory"));
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace cuflash::cli
