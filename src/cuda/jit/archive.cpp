#include "cuda/jit/archive.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "error.h"
#include "support/private_directory.h"

namespace cuflash::cuda {
namespace {

constexpr char kMagic[8] = {'c', 'u', 'f', 'l', 'a', 's', 'h', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kLongestName = 4096, kLargestCubin = uint64_t{1} << 30;

struct Header {
  char magic[sizeof kMagic];
  uint32_t version, count;
  Digest table_checksum;
};

template <class T>
std::string_view bytes_of(const T* first, size_t count) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const char*>(first), count * sizeof(T)};
}

}  // namespace

std::string archive_bytes(const std::vector<ArchiveEntry>& entries) {
  std::vector<Archive::Row> rows;
  uint64_t offset = sizeof(Header) + entries.size() * sizeof(Archive::Row);
  for (const ArchiveEntry& e : entries) {
    rows.push_back({e.key, sha256(e.name + e.cubin), offset, e.name.size(), e.cubin.size()});
    offset += e.name.size() + e.cubin.size();
  }
  const std::string_view table = bytes_of(rows.data(), rows.size());
  Header header{{}, kVersion, static_cast<uint32_t>(entries.size()), sha256(table)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::string bytes;
  bytes.reserve(offset);
  bytes += bytes_of(&header, 1);
  bytes += table;
  for (const ArchiveEntry& e : entries) bytes += e.name, bytes += e.cubin;
  return bytes;
}

Archive Archive::open(const std::string& path) {
  std::string problem;
  File file = open_trusted_file(path, problem);
  if (!file) throw ArchiveError(problem);
  return Archive(std::move(file));
}

Archive::Archive(File file) : file_(std::move(file)) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) throw ArchiveError("is not a plain file");
  const uint64_t file_size = static_cast<uint64_t>(status.st_size);
  if (file_size < sizeof(Header)) throw ArchiveError("is too short to be a pack of kernels");
  Header header;
  std::memcpy(&header, read(0, sizeof header).data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) throw ArchiveError("is not a pack of kernels");
  if (header.version != kVersion)
    throw ArchiveError(join("has format ", header.version, ", this library reads format ", kVersion));
  if (header.count > (file_size - sizeof header) / sizeof(Row)) throw ArchiveError("is truncated");
  const std::string table = read(sizeof header, header.count * sizeof(Row));
  if (sha256(table) != header.table_checksum) throw ArchiveError("is damaged: the checksum of its table is wrong");
  rows_.resize(header.count);
  if (!table.empty()) std::memcpy(rows_.data(), table.data(), table.size());
  for (const Row& row : rows_) {
    if (row.name_size > kLongestName || row.cubin_size > kLargestCubin)
      throw ArchiveError("is damaged: it has an entry of an impossible size");
    if (row.offset > file_size || file_size - row.offset < row.name_size + row.cubin_size)
      throw ArchiveError("is truncated");
  }
}

std::string Archive::read(uint64_t offset, uint64_t size) const {
  std::string bytes(size, '\0');
  for (uint64_t done = 0; done < size;) {
    const ssize_t got = ::pread(file_.get(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw ArchiveError(got < 0 ? join("cannot be read: ", std::strerror(errno)) : "is truncated");
    done += static_cast<uint64_t>(got);
  }
  return bytes;
}

ArchiveEntry Archive::entry(size_t index) const {
  const Row& row = rows_[index];
  std::string bytes = read(row.offset, row.name_size + row.cubin_size);
  if (sha256(bytes) != row.checksum) throw ArchiveError(join("is damaged: the checksum of entry ", index, " is wrong"));
  return {row.key, bytes.substr(0, row.name_size), bytes.substr(row.name_size)};
}

std::optional<ArchiveEntry> Archive::find(const Digest& key) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.key == key; });
  if (row == rows_.end()) return std::nullopt;
  return entry(static_cast<size_t>(row - rows_.begin()));
}

}  // namespace cuflash::cuda
