// Writes files completely or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cuflash::files {

struct OutputFile {
  std::string path;
  std::vector<std::string_view> parts;  // the content in order
};

// The path to write to: a link is followed to its target, so that renaming does not replace the link. Throws FileError if
// write_files could not write there, which a caller wants to know before computing.
std::filesystem::path writable_place(const std::string& path);

// Writes every file under a temporary name in its directory, and renames them when all are complete. No file is ever seen
// half-written, and if one cannot be written, the others stay as they were.
void write_files(const std::vector<OutputFile>& files);

}  // namespace cuflash::files
