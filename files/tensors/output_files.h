// Files that appear complete or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cuflash::files {

struct OutputFile {
  std::string path;
  std::vector<std::string_view> parts;  // its content, one after the other
};

// Where the data goes: through a link to its target, so that renaming does not replace the link. Throws FileError for
// a place that write_files would not write to: worth knowing before computing.
std::filesystem::path writable_place(const std::string& path);

// Every file is written beside its place under a temporary name, and only when all are complete are they renamed: no
// file is ever seen half-written, and when one cannot be written the others stay as they were.
void write_files(const std::vector<OutputFile>& files);

}  // namespace cuflash::files
