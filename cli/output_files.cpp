#include "cli/output_files.h"

#include <fcntl.h>

#include <cerrno>
#include <memory>

#include "cli/exit.h"
#include "cli/file.h"
#include "cli/text.h"

namespace cuflash::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw UsageError(join("cannot write ", in_quotes(path.string()), ": ", reason));
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

  void write(const std::vector<std::string_view>& parts) {
    File file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.is_open()) fail(place_, system_message(errno));
    exists_ = true;
    for (const std::string_view part : parts) write_all(file, part);
    if (!file.close()) fail(place_, system_message(errno));  // a network file system may say only now that it is full
  }
  void put_in_place() {
    std::error_code error;
    fs::rename(temporary_, place_, error);
    if (error) fail(place_, error.message());
    exists_ = false;
  }

 private:
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

fs::path writable_place(const std::string& path) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) fail(path, error.message());
  if (place.filename().empty()) fail(path, "it names a directory");
  const fs::file_status status = fs::status(place, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(path, "it exists and is not a regular file; name a new file or an existing one of the same kind");
  }
  if (::access(place.parent_path().c_str(), W_OK) != 0) {
    fail(path, join("its directory ", in_quotes(place.parent_path().string()), ": ", system_message(errno)));
  }
  return place;
}

void write_files(const std::vector<OutputFile>& files) {
  std::vector<std::unique_ptr<Staged>> staged;
  for (const OutputFile& file : files) {
    staged.push_back(std::make_unique<Staged>(writable_place(file.path)));
    staged.back()->write(file.parts);
  }
  for (const auto& file : staged) file->put_in_place();
}

}  // namespace cuflash::cli
