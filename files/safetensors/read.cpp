#include <algorithm>
#include <array>

#include "files/error.h"
#include "files/safetensors/header.h"
#include "files/safetensors/safetensors.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

int64_t header_length(InputFile& file) {
  std::array<unsigned char, 8> bytes{};
  file.require_left(bytes.size(), "the start of a safetensors file");
  file.read(bytes.data(), bytes.size());
  uint64_t length = 0;
  for (size_t n = 0; n < bytes.size(); ++n) length |= uint64_t{bytes[n]} << (8 * n);
  if (length > uint64_t{kLongestSafetensorsHeader}) {
    throw FileError(join("its first 8 bytes say that its header has ", length, " bytes, but at most ",
                         kLongestSafetensorsHeader, " are allowed: it is damaged, or not a safetensors file"));
  }
  return static_cast<int64_t>(length);
}

std::vector<SafetensorsTensor> read_header(InputFile& file) {
  const int64_t length = header_length(file);
  file.require_left(length, "its header");
  std::string text(static_cast<size_t>(length), '\0');
  file.read(text.data(), length);
  std::vector<SafetensorsTensor> tensors = parse_safetensors_header(text);

  const int64_t data = tensors.empty() ? 0 : tensors.back().end;
  file.require_left(data, "the data of its tensors");
  if (file.left() != data) {
    throw FileError(join("it has ", file.left() - data, " more bytes after its last tensor; it must end there"));
  }
  return tensors;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    : path_(path), file_(naming_file(path, [&] { return InputFile(path); })) {
  tensors_ = naming_file(path, [&] { return read_header(file_); });
}

const SafetensorsTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const SafetensorsTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

Array SafetensorsReader::read(const SafetensorsTensor& tensor) const {
  return naming_file(path_, [&] {
    if (!tensor.type) {
      throw FileError(join("tensor ", in_quotes(tensor.name), " holds ", in_quotes(tensor.dtype),
                           ", which is not supported; save it as F64, F32, F16 or BF16 (BOOL or an integer for masks ",
                           "and lengths)"));
    }
    // The file is large enough, but a sparse file can be larger than the machine's memory.
    Array array{*tensor.type, tensor.shape, allocate(tensor.end - tensor.begin)};
    file_.read_at(tensor.begin, array.bytes.data(), tensor.end - tensor.begin);
    return array;
  });
}

}  // namespace cuflash::files
