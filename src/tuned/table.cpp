#include "tuned/table.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "error.h"
#include "support/environment.h"
#include "support/kernel_headers.h"
#include "support/private_directory.h"
#include "support/sha256.h"

namespace cuflash::tuned {
namespace {

constexpr std::string_view kFormat = "cuflash tuned 2", kDevice = "device ", kChecksum = "checksum ", kBetween = " : ";
constexpr off_t kLargest = 1 << 20;

std::string made_by() { return join("made by ", cuflash_version(), " ", kernel_headers_hash()); }

std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

bool read_choice(std::string_view line, Choices& choices) {
  const size_t first = line.find(kBetween), second = line.find(kBetween, first + kBetween.size());
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const std::optional<Kind> kind = parse_kind(line.substr(0, first));
  const std::optional<Choice> choice =
      parse_choice(line.substr(first + kBetween.size(), second - first - kBetween.size()));
  Measured measured;
  const std::string_view gain = line.substr(second + kBetween.size());
  const auto [end, error] = std::from_chars(gain.data(), gain.data() + gain.size(), measured.gain);
  if (!kind || !choice || error != std::errc() || end != gain.data() + gain.size()) return false;
  measured.choice = *choice;
  return choices.emplace(*kind, measured).second;
}

std::string read_all(int file, off_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::pread(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

void read_from(int directory, Table& table) {
  if (::faccessat(directory, kTunedFile, F_OK, AT_SYMLINK_NOFOLLOW) != 0) return;
  std::string problem;
  const File file = open_private_file(directory, kTunedFile, problem);
  struct stat status {};
  if (file && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > kLargest))
    problem = join("is not a file of at most ", kLargest, " bytes");
  if (problem.empty()) problem = parse(read_all(file.get(), status.st_size), table.devices);
  if (!problem.empty()) table.state = join(table.file, " ", problem);
}

std::string path_in(const std::string& directory) { return directory.empty() ? "" : join(directory, "/", kTunedFile); }

bool exists(const std::string& directory) {
  struct stat status {};
  return !directory.empty() && ::lstat(directory.c_str(), &status) == 0;
}

}  // namespace

size_t count(const Devices& devices) {
  size_t total = 0;
  for (const auto& [device, choices] : devices) total += choices.size();
  return total;
}

std::string parse(std::string_view text, Devices& devices) {
  const size_t last = text.rfind(kChecksum);
  if (!text.starts_with(kFormat)) return "is not a file of tuned choices";
  if (last == std::string_view::npos || last == 0 || text[last - 1] != '\n' ||
      text.substr(last) != join(kChecksum, hex(sha256(text.substr(0, last))), "\n"))
    return "is damaged: its checksum is wrong; 'cuflash cache clear' removes it";
  std::string_view rest = text.substr(0, last);
  if (next_line(rest) != kFormat) return "has another format than this library reads";
  if (next_line(rest) != made_by()) return "was made for other kernels than this library has; run 'cuflash tune' again";
  Devices found;
  Choices* choices = nullptr;
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    if (line.starts_with(kDevice)) choices = &found[std::string(line.substr(kDevice.size()))];
    else if (!choices || !read_choice(line, *choices)) return "is damaged: it has a line that is no choice";
  }
  devices = std::move(found);
  return "";
}

std::string text_of(const Devices& devices) {
  std::string text = join(kFormat, "\n", made_by(), "\n");
  for (const auto& [device, choices] : devices) {
    text += join(kDevice, device, "\n");
    for (const auto& [kind, measured] : choices)
      text += join(to_string(kind), kBetween, to_string(measured.choice), kBetween, measured.gain, "\n");
  }
  return text + join(kChecksum, hex(sha256(text)), "\n");
}

Table read_table(const std::string& directory) {
  Table table;
  table.file = path_in(directory);
  if (!exists(directory)) return table;
  const File opened = open_private_directory(directory, table.state);
  if (opened) read_from(opened.get(), table);
  return table;
}

std::string write_choices(const std::string& directory, const std::string& device, const Choices& choices) {
  if (directory.empty()) return "neither CUFLASH_CACHE_DIR nor XDG_CACHE_HOME nor HOME names a directory";
  std::string problem;
  const File opened = open_private_directory(directory, problem);
  if (!opened) return problem;
  // Held until the directory is closed. On a file system without locks, the last writer wins.
  ::flock(opened.get(), LOCK_EX);
  Table table;  // a file that is damaged or for other kernels is replaced
  table.file = path_in(directory);
  read_from(opened.get(), table);
  Choices& all = table.devices[device];
  for (const auto& [kind, measured] : choices) {
    if (measured.choice.family.empty()) all.erase(kind);
    else all[kind] = measured;
  }
  if (all.empty()) table.devices.erase(device);
  if (!replace_file(opened.get(), kTunedFile, text_of(table.devices)))
    return join(table.file, " cannot be written: ", std::strerror(errno));
  return "";
}

const Table& table() {
  static const Table instance = [] {
    const Environment& e = environment();
    return e.tuned == "off" ? Table{{}, path_in(e.cache_dir), "CUFLASH_TUNED=off"} : read_table(e.cache_dir);
  }();
  return instance;
}

const Choices& choices_of(const std::string& device) {
  static const Choices kNone;
  const auto found = table().devices.find(device);
  return found == table().devices.end() ? kNone : found->second;
}

}  // namespace cuflash::tuned
