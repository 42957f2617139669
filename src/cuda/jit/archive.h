// A file of compiled kernels: a pack holds many, a file of the disk cache holds one.
//
//   magic, version, number of entries, checksum of the table
//   table: key, checksum of name and cubin, offset, sizes of both
//   names and cubins
//
// Integers are little-endian. Nothing in a file is believed before it was compared with the file's size or a checksum.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/file.h"
#include "support/sha256.h"

namespace cuflash::cuda {

struct ArchiveEntry {
  Digest key;
  std::string name;  // of the kernel, for people
  std::string cubin;
};

std::string archive_bytes(const std::vector<ArchiveEntry>& entries);

// Why a file is not a good archive.
struct ArchiveError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads and checks the table; an entry is read, and checked, when it is asked for.
class Archive {
 public:
  explicit Archive(File file);
  static Archive open(const std::string& path);  // refuses a file that another user could have written

  size_t size() const { return rows_.size(); }
  std::optional<ArchiveEntry> find(const Digest& key) const;
  ArchiveEntry entry(size_t index) const;

 private:
  struct Row {
    Digest key, checksum;
    uint64_t offset, name_size, cubin_size;
  };
  friend std::string archive_bytes(const std::vector<ArchiveEntry>& entries);
  std::string read(uint64_t offset, uint64_t size) const;

  File file_;
  std::vector<Row> rows_;
};

}  // namespace cuflash::cuda
