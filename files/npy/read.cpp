#include <array>
#include <cstring>

#include "files/input_file.h"
#include "files/npy/header.h"
#include "files/npy/npy.h"

namespace cuflash::files {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kLongestHeader = 1 << 20;  // far more than any array of numbers needs; NumPy's own limit is 10,000

int64_t header_length(InputFile& file) {
  std::array<unsigned char, 8> start{};  // magic, major version, minor version
  file.require_left(start.size(), "the start of a .npy file");
  file.read(start.data(), start.size());
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FileError("it is not a .npy file (the name of a safetensors file must end in .safetensors)");
  }
  const int major = start[6];
  if (major < 1 || major > 3)
    throw FileError(join("its .npy version is ", major, "; only versions 1 to 3 are supported"));

  std::array<unsigned char, 4> length{};
  const int64_t length_size = major == 1 ? 2 : 4;
  file.require_left(length_size, "the header's length");
  file.read(length.data(), length_size);
  return int64_t{length[0]} | int64_t{length[1]} << 8 | int64_t{length[2]} << 16 | int64_t{length[3]} << 24;
}

std::vector<std::byte> fortran_to_c(const std::vector<std::byte>& from, const std::vector<int64_t>& shape,
                                    size_t size) {
  std::vector<size_t> stride(shape.size());  // in the file, where the first dimension is contiguous
  size_t next_stride = size;
  for (size_t d = 0; d < shape.size(); ++d) {
    stride[d] = next_stride;
    next_stride *= static_cast<size_t>(shape[d]);
  }
  std::vector<std::byte> to(from.size());
  std::vector<int64_t> index(shape.size());
  size_t source = 0;
  for (size_t target = 0; target < to.size(); target += size) {
    std::memcpy(&to[target], &from[source], size);
    for (size_t d = shape.size(); d-- > 0;) {
      source += stride[d];
      if (++index[d] < shape[d]) break;
      source -= stride[d] * static_cast<size_t>(shape[d]);
      index[d] = 0;
    }
  }
  return to;
}

Array read(InputFile file) {
  const int64_t length = header_length(file);
  file.require_left(length, "its header");
  if (length > kLongestHeader)
    throw FileError(join("its header has ", length, " bytes; at most ", kLongestHeader, " are allowed"));
  std::string text(static_cast<size_t>(length), '\0');
  file.read(text.data(), length);
  NpyHeader header = parse_npy_header(text);

  const int64_t bytes = data_bytes(header.type, header.shape);
  file.require_left(bytes, join("an array of ", name_of(header.type), " ", shape_text(header.shape)));
  if (file.left() != bytes) {
    throw FileError(join("it has ", file.left() - bytes, " more bytes after its array; a file must hold one array"));
  }

  // The file is large enough, but a sparse file can be larger than the machine's memory.
  Array array{header.type, std::move(header.shape), allocate(bytes)};
  file.read(array.bytes.data(), bytes);
  if (header.swap_bytes) swap_bytes(array.bytes, array.type);
  if (header.fortran_order && array.shape.size() > 1) {
    array.bytes = fortran_to_c(array.bytes, array.shape, static_cast<size_t>(size_of(array.type)));
  }
  return array;
}

}  // namespace

Array read_npy(const std::string& path) {
  return naming_file(path, [&] { return read(InputFile(path)); });
}

}  // namespace cuflash::files
