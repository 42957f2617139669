#include "cli/io/ncu.h"

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "support/file.h"
#include "support/text.h"

extern char** environ;

namespace cuflash::cli {

namespace {

constexpr std::array kMetrics{"dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"};
constexpr size_t kLongestOutput = size_t{16} << 20;

[[noreturn]] void fail(const auto&... words) { throw std::runtime_error(join("ncu: ", words...)); }

// The fields of a line, without quotation marks; a doubled one is a literal one.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t n = 0; n < line.size(); ++n) {
    const bool doubled = quoted && line.substr(n, 2) == "\"\"";
    if (line[n] == '"' && !doubled) {
      quoted = !quoted;
    } else if (line[n] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[n];
      n += doubled;
    }
  }
  if (quoted) fail("a quotation mark is open at the end of ", in_quotes(line));
  return fields;
}

// "1,234,567" or "1234567.5".
double number_in(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value < 1e18))
    fail(in_quotes(text), " is not a number of bytes");
  return value;
}

// ncu and the program may print around the table; lines of ncu itself begin with "==".
std::vector<std::vector<std::string>> table_in(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("==ERROR==")) fail(line.substr(0, 300));
    if (line.starts_with('"')) rows.push_back(fields_of(line));
  }
  return rows;
}

std::string output_of(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe(ends) != 0) fail(system_message(errno));
  const File reading(ends[0]);
  File writing(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  ::posix_spawn_file_actions_addclose(&actions, ends[0]);
  ::posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(error == ENOENT ? "it is not in the PATH" : system_message(error));
  writing.close();

  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t count = 1; count != 0;) {
    count = ::read(reading.get(), buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) fail(system_message(errno));
    // Output beyond the limit is read and dropped, so that the child can finish.
    if (count > 0 && text.size() < kLongestOutput) text.append(buffer.data(), static_cast<size_t>(count));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail(system_message(errno));
  if (status != 0 && text.find("==ERROR==") == std::string::npos)
    fail("ended with status ", status, ": ", in_quotes(text));
  return text;
}

}  // namespace

Measured measured_in(std::string_view csv) {
  const auto rows = table_in(csv);
  if (rows.size() < 3) fail("printed no kernel, but ", in_quotes(csv));
  const auto &head = rows[0], &units = rows[1];
  for (const auto& row : rows)
    if (row.size() != head.size()) fail("a row has ", row.size(), " fields, not ", head.size());
  std::array<double, kMetrics.size()> sums{};
  for (size_t metric = 0; metric < kMetrics.size(); ++metric) {
    const auto column = static_cast<size_t>(std::find(head.begin(), head.end(), kMetrics[metric]) - head.begin());
    if (column == head.size()) fail("printed no column ", kMetrics[metric]);
    if (units[column] != "byte") fail(kMetrics[metric], " is in ", in_quotes(units[column]), ", not in bytes");
    for (size_t n = 2; n < rows.size(); ++n) sums[metric] += number_in(rows[n][column]);
  }
  return {sums[0], sums[1], sums[2]};
}

Measured measure_with_ncu(const std::vector<std::string>& arguments) {
  std::string metrics;
  for (const char* name : kMetrics) metrics += join(metrics.empty() ? "" : ",", name);
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) fail("the path of this program is not known: ", error.message());
  std::vector<std::string> words{"ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics, self};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return measured_in(output_of(words));
}

}  // namespace cuflash::cli
