#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "cli/exit.h"
#include "cli/file.h"
#include "cli/npy.h"
#include "cli/npy_header.h"
#include "cli/text.h"

namespace cuflash::cli {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kLongestHeader = 1 << 20;  // far beyond any array of numbers; NumPy itself stops at 10,000

int64_t regular_file_size(const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw UsageError(system_message(errno));
  if (!S_ISREG(status.st_mode)) throw UsageError("it is not a regular file; a pipe must be saved to a file first");
  return status.st_size;
}

void read_exactly(const File& file, void* to, int64_t count) {
  auto* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = ::read(file.descriptor(), next, static_cast<size_t>(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw UsageError(system_message(errno));
    if (got == 0) throw UsageError("it became shorter while it was read");
    next += got;
    count -= got;
  }
}

// Takes count bytes off what is left of the file, before anybody allocates or reads them.
void claim(int64_t& left, int64_t count, const char* what) {
  if (count > left)
    throw UsageError(join("it is cut off: ", what, " needs ", count, " bytes and ", left, " are there"));
  left -= count;
}

int64_t header_length(const File& file, int64_t& left) {
  std::array<unsigned char, 8> start{};  // magic, major version, minor version
  claim(left, start.size(), "the start of a .npy file");
  read_exactly(file, start.data(), start.size());
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) throw UsageError("it is not a .npy file");
  const int major = start[6];
  if (major < 1 || major > 3) throw UsageError(join("its .npy version is ", major, "; versions 1 to 3 are known"));

  std::array<unsigned char, 4> length{};
  const int64_t length_size = major == 1 ? 2 : 4;
  claim(left, length_size, "the header's length");
  read_exactly(file, length.data(), length_size);
  return int64_t{length[0]} | int64_t{length[1]} << 8 | int64_t{length[2]} << 16 | int64_t{length[3]} << 24;
}

void swap_bytes(std::vector<std::byte>& bytes, size_t size) {
  for (auto element = bytes.begin(); element != bytes.end(); element += static_cast<std::ptrdiff_t>(size)) {
    std::reverse(element, element + static_cast<std::ptrdiff_t>(size));
  }
}

std::vector<std::byte> fortran_to_c(const std::vector<std::byte>& from, const std::vector<int64_t>& shape,
                                    size_t size) {
  std::vector<size_t> stride(shape.size());  // in the file, where the first dimension is the contiguous one
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

NpyArray read(const File& file) {
  int64_t left = regular_file_size(file);
  const int64_t length = header_length(file, left);
  claim(left, length, "its header");
  if (length > kLongestHeader)
    throw UsageError(join("its header has ", length, " bytes; at most ", kLongestHeader, " make sense"));
  std::string text(static_cast<size_t>(length), '\0');
  read_exactly(file, text.data(), length);
  NpyHeader header = parse_npy_header(text);

  const int64_t bytes = npy_data_bytes(header.type, header.shape);
  claim(left, bytes, join("an array of ", name_of(header.type), " ", shape_text(header.shape)).c_str());
  if (left != 0)
    throw UsageError(join("it goes on for ", left, " bytes after its array; one array a file is expected"));

  // The file has the size, but a sparse one can have more than the machine has memory.
  NpyArray array{header.type, std::move(header.shape), allocate(bytes)};
  read_exactly(file, array.bytes.data(), bytes);
  const auto size = static_cast<size_t>(size_of(array.type));
  if (header.swap_bytes) swap_bytes(array.bytes, size);
  if (header.fortran_order && array.shape.size() > 1) array.bytes = fortran_to_c(array.bytes, array.shape, size);
  return array;
}

}  // namespace

int64_t NpyArray::count() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

NpyArray read_npy(const std::string& path) {
  try {
    // Opening a pipe that nobody writes to would wait forever without O_NONBLOCK.
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.is_open()) throw UsageError(system_message(errno));
    return read(file);
  } catch (const UsageError& error) {
    throw UsageError(join("cannot read ", quoted(path), ": ", error.what()));
  }
}

}  // namespace cuflash::cli
