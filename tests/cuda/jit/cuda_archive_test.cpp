// Files of compiled kernels: what was written is read back; files that are damaged, truncated or forged are rejected.
#include "cuda/jit/archive.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/shared/temp_dir.h"

namespace cuflash::cuda {
namespace {

std::vector<ArchiveEntry> three_entries() {
  std::vector<ArchiveEntry> entries;
  for (const char* name : {"one", "two", "three"})
    entries.push_back({sha256(name), name, std::string(name) + " cubin"});
  return entries;
}

class ArchiveFile : public testing::Test {
 protected:
  Archive open(const std::string& bytes) { return Archive::open(dir.write("pack", bytes)); }
  // Why it is refused, or "".
  std::string refusal(const std::string& bytes) {
    try {
      const Archive archive = open(bytes);
      for (size_t n = 0; n < archive.size(); ++n) archive.entry(n);
    } catch (const ArchiveError& error) {
      return error.what();
    }
    return "";
  }
  test::TempDir dir;
};

TEST_F(ArchiveFile, ReturnsWhatWasWritten) {
  const auto entries = three_entries();
  const Archive archive = open(archive_bytes(entries));
  ASSERT_EQ(archive.size(), 3u);
  for (const ArchiveEntry& entry : entries) {
    const auto found = archive.find(entry.key);
    ASSERT_TRUE(found) << entry.name;
    EXPECT_EQ(found->name, entry.name);
    EXPECT_EQ(found->cubin, entry.cubin);
  }
  EXPECT_FALSE(archive.find(sha256("four")));
  EXPECT_EQ(open(archive_bytes({})).size(), 0u);
}

TEST_F(ArchiveFile, EveryTruncationIsSeen) {
  const std::string bytes = archive_bytes(three_entries());
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_NE(refusal(bytes.substr(0, length)), "") << length << " of " << bytes.size() << " bytes";
  EXPECT_EQ(refusal(bytes), "");
}

TEST_F(ArchiveFile, EveryDamagedByteIsSeen) {
  const std::string bytes = archive_bytes(three_entries());
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::string damaged = bytes;
    damaged[n] = static_cast<char>(damaged[n] ^ 0x10);
    EXPECT_NE(refusal(damaged), "") << "byte " << n;
  }
}

TEST_F(ArchiveFile, OneDamagedEntryDoesNotSpoilTheOthers) {
  const auto entries = three_entries();
  std::string bytes = archive_bytes(entries);
  bytes.back() ^= 1;  // the last byte belongs to the last cubin
  const Archive archive = open(bytes);
  EXPECT_TRUE(archive.find(entries[0].key));
  EXPECT_THROW(archive.find(entries[2].key), ArchiveError);
}

// Forged files with valid checksums, which would have us read or allocate what is not there.
class HostileArchive : public ArchiveFile {
 protected:
  static constexpr size_t kHeader = 48, kRow = 88, kChecksum = 16;

  // An archive of one entry with one number of its table replaced, and the checksum of the table to match.
  std::string with_number(size_t at, uint64_t value) {
    std::string bytes = archive_bytes({{sha256("x"), "x", "cubin"}});
    std::memcpy(bytes.data() + kHeader + at, &value, sizeof value);
    const Digest checksum = sha256(std::string_view(bytes).substr(kHeader, kRow));
    std::memcpy(bytes.data() + kChecksum, checksum.data(), checksum.size());
    return bytes;
  }
};

TEST_F(HostileArchive, SizesAndOffsetsBeyondTheFileAreRefused) {
  constexpr size_t kOffset = 64, kNameSize = 72, kCubinSize = 80;
  EXPECT_EQ(refusal(with_number(kCubinSize, 5)), "") << "the numbers of this test are not where it thinks they are";
  for (const uint64_t value : {uint64_t{1} << 20, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 5})
    for (const size_t at : {kOffset, kNameSize, kCubinSize}) EXPECT_NE(refusal(with_number(at, value)), "") << at;
}

TEST_F(HostileArchive, MoreEntriesThanTheFileHoldsAreRefused) {
  for (const uint32_t count : {2u, 1000u, 0x80000000u, 0xffffffffu}) {
    std::string bytes = archive_bytes({{sha256("x"), "x", "cubin"}});
    std::memcpy(bytes.data() + 12, &count, sizeof count);
    EXPECT_NE(refusal(bytes), "") << count;
  }
}

TEST_F(ArchiveFile, OtherThingsThanFilesAreRefused) {
  EXPECT_THROW(Archive::open(dir.file("")), ArchiveError);
  EXPECT_THROW(Archive::open(dir.file("missing")), ArchiveError);
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  EXPECT_THROW(Archive::open(dir.file("fifo")), ArchiveError);
  EXPECT_EQ(refusal("a text that somebody named by mistake, which is long enough to have a header"),
            "is not a pack of kernels");
}

}  // namespace
}  // namespace cuflash::cuda
