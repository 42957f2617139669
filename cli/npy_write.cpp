#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>

#include "cli/exit.h"
#include "cli/file.h"
#include "cli/npy.h"
#include "cli/npy_header.h"
#include "cli/text.h"

namespace cuflash::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw UsageError(join("cannot write ", quoted(path.string()), ": ", reason));
}

// Where the data goes: through a link to its target, so that renaming does not replace the link.
fs::path place_of(const std::string& path) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) fail(path, error.message());
  return place;
}

// A file under a temporary name that disappears unless it gets its place.
class Staged {
 public:
  explicit Staged(fs::path place) : place_(std::move(place)) {
    temporary_ = place_;
    temporary_.replace_filename(join(".", place_.filename().string(), ".", ::getpid(), ".tmp"));
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    std::error_code ignored;
    if (exists_) fs::remove(temporary_, ignored);
  }

  void write(const NpyArray& array) {
    File file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.is_open()) fail(place_, system_message(errno));
    exists_ = true;
    write_all(file, preamble(array));
    write_all(file, {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()});
    if (!file.close()) fail(place_, system_message(errno));  // a network file system may say only now that it is full
  }
  void put_in_place() {
    std::error_code error;
    fs::rename(temporary_, place_, error);
    if (error) fail(place_, error.message());
    exists_ = false;
  }

 private:
  // Magic, version 1.0, the header's length and the header, padded so that the data begins at a multiple of 64.
  static std::string preamble(const NpyArray& array) {
    constexpr size_t kBefore = 10, kAlignment = 64;
    std::string text = npy_header_text(array.type, array.shape);
    text.resize((kBefore + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kBefore, ' ');
    text.back() = '\n';
    const auto length = static_cast<uint16_t>(text.size());
    std::string start("\x93NUMPY\x01\x00", 8);
    start += static_cast<char>(length & 0xff);
    start += static_cast<char>(length >> 8);
    return start + text;
  }
  void write_all(const File& file, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file.descriptor(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(place_, system_message(errno));
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }

  fs::path place_, temporary_;
  bool exists_ = false;
};

}  // namespace

void require_writable(const std::vector<std::string>& paths) {
  std::set<fs::path> places;
  for (const std::string& path : paths) {
    const fs::path place = place_of(path);
    if (place.filename().empty()) fail(path, "it names a directory");
    std::error_code error;
    const fs::file_status status = fs::status(place, error);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      fail(path, "it exists and is not a regular file; name a new file or an existing .npy file");
    }
    if (::access(place.parent_path().c_str(), W_OK) != 0) {
      fail(path, join("its directory ", quoted(place.parent_path().string()), ": ", system_message(errno)));
    }
    if (!places.insert(place).second) fail(path, "another output has the same name");
  }
}

void write_npy_files(const std::vector<NpyOutput>& outputs) {
  std::vector<std::string> paths;
  for (const NpyOutput& output : outputs) paths.push_back(output.path);
  require_writable(paths);
  std::vector<std::unique_ptr<Staged>> staged;
  for (const NpyOutput& output : outputs) {
    staged.push_back(std::make_unique<Staged>(place_of(output.path)));
    staged.back()->write(output.array);
  }
  for (const auto& file : staged) file->put_in_place();
}

}  // namespace cuflash::cli
