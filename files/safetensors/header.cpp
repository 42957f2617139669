#include "files/safetensors/header.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "files/error.h"
#include "files/text/json.h"
#include "files/text/utf8.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

struct TypeRow {
  ElementType type;
  const char* dtype;
};
constexpr std::array<TypeRow, 13> kTypes{{{ElementType::boolean, "BOOL"},
                                          {ElementType::i8, "I8"},
                                          {ElementType::i16, "I16"},
                                          {ElementType::i32, "I32"},
                                          {ElementType::i64, "I64"},
                                          {ElementType::u8, "U8"},
                                          {ElementType::u16, "U16"},
                                          {ElementType::u32, "U32"},
                                          {ElementType::u64, "U64"},
                                          {ElementType::f16, "F16"},
                                          {ElementType::bf16, "BF16"},
                                          {ElementType::f32, "F32"},
                                          {ElementType::f64, "F64"}}};

std::optional<ElementType> type_of(std::string_view dtype) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.dtype == dtype; });
  return row == kTypes.end() ? std::nullopt : std::optional(row->type);
}

std::vector<int64_t> parse_numbers(JsonScanner& scanner, const char* what, size_t most) {
  std::vector<int64_t> numbers;
  scanner.expect('[', join("before the numbers of ", what).c_str());
  if (scanner.take(']')) return numbers;
  do {
    if (numbers.size() == most) scanner.fail(join(what, " has more than ", most, " numbers"));
    numbers.push_back(scanner.number(join("a number of ", what).c_str()));
  } while (scanner.take(','));
  scanner.expect(']', join("or ',' after a number of ", what).c_str());
  return numbers;
}

void parse_offsets(JsonScanner& scanner, SafetensorsTensor& tensor) {
  const std::vector<int64_t> offsets = parse_numbers(scanner, "data_offsets", 2);
  if (offsets.size() != 2) scanner.fail("data_offsets must be two numbers, [begin, end],");
  tensor.begin = offsets[0], tensor.end = offsets[1];
}

SafetensorsTensor parse_tensor(JsonScanner& scanner, const std::string& name) {
  SafetensorsTensor tensor;
  tensor.name = name;
  size_t keys = 0;
  scanner.object("a tensor", [&](const std::string& key) {
    if (key == "dtype") {
      tensor.dtype = scanner.string();
      tensor.type = type_of(tensor.dtype);
    } else if (key == "shape") {
      tensor.shape = parse_numbers(scanner, "shape", kMaxDimensions);
    } else if (key == "data_offsets") {
      parse_offsets(scanner, tensor);
    } else {
      scanner.fail(join("tensor ", in_quotes(name), " has the unknown key ", in_quotes(key)));
    }
    ++keys;
  });
  if (keys != 3) scanner.fail(join("tensor ", in_quotes(name), " needs all of dtype, shape and data_offsets"));
  return tensor;
}

void require_size(const SafetensorsTensor& tensor) {
  const std::string offsets =
      join("tensor ", in_quotes(tensor.name), ": its data_offsets are ", shape_text({tensor.begin, tensor.end}));
  if (tensor.begin > tensor.end) throw FileError(join(offsets, ", but it must begin before it ends"));
  if (!tensor.type) return;  // an unknown type, whose size is unknown too
  int64_t needed = 0;
  try {
    needed = data_bytes(*tensor.type, tensor.shape);
  } catch (const FileError& error) {
    throw FileError(join("tensor ", in_quotes(tensor.name), ": ", error.what()));
  }
  if (tensor.end - tensor.begin != needed) {
    throw FileError(join(offsets, ", which is ", tensor.end - tensor.begin, " bytes, but ", tensor.dtype, " ",
                         shape_text(tensor.shape), " needs ", needed));
  }
}

// Requires that each tensor begins at the end of the previous one, in the order of the data.
void require_no_gaps(const std::vector<SafetensorsTensor>& tensors) {
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin != end) {
      throw FileError(join("tensor ", in_quotes(tensor.name), " begins at byte ", tensor.begin,
                           " of the data, but the tensor before it ends at byte ", end, "; tensors may not ",
                           tensor.begin < end ? "overlap" : "have a gap between them"));
    }
    end = tensor.end;
  }
}

}  // namespace

const char* safetensors_dtype(ElementType type) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.type == type; })->dtype;
}

std::vector<SafetensorsTensor> parse_safetensors_header(std::string_view text) {
  if (!text.starts_with('{'))
    throw FileError(join("its header must begin with '{', but begins with ", in_quotes(text)));
  if (!is_utf8(text)) throw FileError("its header is not UTF-8 text");
  JsonScanner scanner(text);
  std::vector<SafetensorsTensor> tensors;
  scanner.object("the header", [&](const std::string& key) {
    if (key != kMetadataKey) {
      tensors.push_back(parse_tensor(scanner, key));
    } else {
      scanner.object("__metadata__", [&](const std::string&) { scanner.string(); });
    }
  });
  if (!scanner.at_end()) scanner.fail("text after the object");

  for (const SafetensorsTensor& tensor : tensors) require_size(tensor);
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);  // empty tensors come first
  });
  require_no_gaps(tensors);
  return tensors;
}

}  // namespace cuflash::files
