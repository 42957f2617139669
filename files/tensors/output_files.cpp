#include "files/tensors/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <memory>

#include "files/error.h"
#include "support/temporary_file.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw FileError(join("cannot write ", in_quotes(path.string()), ": ", reason));
}

class Staged {
 public:
  explicit Staged(fs::path place) : place_(std::move(place)), file_(place_.string(), 0666) { require(bool(file_)); }

  void write(const std::vector<std::string_view>& parts) {
    for (const std::string_view part : parts) require(file_.write(part));
    require(file_.close());
  }
  void put_in_place() { require(file_.put_in_place()); }

 private:
  void require(bool worked) const {
    if (worked) return;
    const fs::path temporary = place_.parent_path() / file_.temporary_name();
    fail(place_, join("its temporary file ", in_quotes(temporary.string()), ": ", system_message(file_.error())));
  }

  fs::path place_;
  TemporaryFile file_;
};

}  // namespace

fs::path writable_place(const std::string& path) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  // weakly_canonical leaves a link whose target does not exist yet as it is.
  constexpr int kMaxLinks = 40;  // as many as Linux follows
  for (int links = 0; !error && fs::is_symlink(fs::symlink_status(place, error)); ++links) {
    if (links == kMaxLinks) fail(path, system_message(ELOOP));
    place = fs::weakly_canonical(place.parent_path() / fs::read_symlink(place, error), error);
  }
  if (error && error != std::errc::no_such_file_or_directory) fail(path, error.message());
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

}  // namespace cuflash::files
