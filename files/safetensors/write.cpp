#include <algorithm>

#include "files/error.h"
#include "files/safetensors/header.h"
#include "files/safetensors/safetensors.h"
#include "files/text/json.h"
#include "files/text/utf8.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

std::string json_numbers(const std::vector<int64_t>& numbers) {
  std::string json = "[";
  for (const int64_t number : numbers) {
    if (json.size() > 1) json += ',';
    json += std::to_string(number);
  }
  json += ']';
  return json;
}

}  // namespace

SafetensorsContent safetensors_content(std::vector<NamedArray> arrays) {
  // The start is padded to 8 bytes and the largest elements come first, so that every element is aligned in the file.
  std::stable_sort(arrays.begin(), arrays.end(), [](const NamedArray& a, const NamedArray& b) {
    return size_of(a.array->type) > size_of(b.array->type);
  });
  SafetensorsContent content;
  std::string header = "{";
  int64_t begin = 0;
  for (const auto& [name, array] : arrays) {
    require_tensor_name(name);
    const int64_t end = begin + static_cast<int64_t>(array->bytes.size());
    header += join(header.size() == 1 ? "" : ",", json_string(name), ":{\"dtype\":\"", safetensors_dtype(array->type),
                   "\",\"shape\":", json_numbers(array->shape), ",\"data_offsets\":", json_numbers({begin, end}), "}");
    content.data.push_back(array);
    begin = end;
  }
  header += "}";
  constexpr size_t kAlignment = 8;
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  for (size_t n = 0; n < 8; ++n) content.start += static_cast<char>(header.size() >> (8 * n) & 0xff);
  content.start += header;
  return content;
}

void require_tensor_name(const std::string& name) {
  if (name == kMetadataKey || !is_utf8(name)) {
    throw FileError(join("a tensor cannot be named ", in_quotes(name), "; choose any other UTF-8 text"));
  }
}

}  // namespace cuflash::files
