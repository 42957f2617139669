// A file of compiled kernels: a pack holds many, a file of the disk cache holds one.
//
//   magic, version, number of entries, checksum of the table
//   table: key, checksum of name and cubin, offset, sizes of both
//   names and cubins
//
// Integers are little-endian. Everything in a file is checked against its size or a checksum before it is used.
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
  std::string name;  // kernel name, for display
  std::string cubin;
};

std::string archive_bytes(const std::vector<ArchiveEntry>& entries);

// Says why a file is not a valid archive.
struct ArchiveError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The constructor reads and checks the table; entries are read and checked on access.
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
