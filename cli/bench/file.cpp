#include "cli/bench/file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "files/input_file.h"
#include "files/text/json.h"
#include "files/text/utf8.h"
#include "support/text.h"

namespace cuflash::cli {

using files::FileError, files::JsonScanner, files::json_string;

namespace {

constexpr const char* kFormat = "cuflash-bench-1";
constexpr int64_t kLargestFile = int64_t{64} << 20;

// The members of a result, in the order of the file.
template <class Owner, class Member>
using Field = std::pair<const char*, Member Owner::*>;
constexpr std::array<Field<BenchPoint, std::string>, 3> kNames{
    {{"device", &BenchPoint::device}, {"direction", &BenchPoint::direction}, {"dtype", &BenchPoint::dtype}}};
constexpr std::array<Field<BenchPoint, int64_t>, 8> kSizes{{{"batch", &BenchPoint::batch},
                                                            {"heads_q", &BenchPoint::heads_q},
                                                            {"heads_k", &BenchPoint::heads_k},
                                                            {"len_q", &BenchPoint::len_q},
                                                            {"len_k", &BenchPoint::len_k},
                                                            {"head_dim", &BenchPoint::head_dim},
                                                            {"head_dim_v", &BenchPoint::head_dim_v},
                                                            {"page_size", &BenchPoint::page_size}}};
constexpr std::array<Field<BenchResult, double>, 3> kTimes{
    {{"ms", &BenchResult::ms}, {"ms_low", &BenchResult::ms_low}, {"ms_high", &BenchResult::ms_high}}};
constexpr std::array<Field<BenchResult, std::optional<double>>, 5> kFigures{
    {{"tflops", &BenchResult::tflops},
     {"gbs", &BenchResult::gbs},
     {"share", &BenchResult::share},
     {"clock_mhz", &BenchResult::clock_mhz},
     {"extra_bytes", &BenchResult::extra_bytes}}};

template <class Fields>
auto member_named(const Fields& fields, std::string_view name) -> decltype(fields.front().second) {
  for (const auto& [known, member] : fields)
    if (name == known) return member;
  return nullptr;
}

std::string number_text(double value) {
  constexpr double kLargestWhole = 1e15;  // show bytes without an exponent
  if (value == std::floor(value) && std::abs(value) < kLargestWhole) return std::to_string(std::llround(value));
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : "0";
}

// Calls member(name, value as JSON) for each.
template <class Member>
void each_member(const BenchResult& result, Member member) {
  member("contestant", json_string(result.contestant));
  for (const auto& [name, field] : kNames) member(name, json_string(result.point.*field));
  for (const auto& [name, field] : kSizes) member(name, std::to_string(result.point.*field));
  member("causal", result.point.causal ? "true" : "false");
  for (const auto& [name, field] : kTimes) member(name, number_text(result.*field));
  for (const auto& [name, field] : kFigures) {
    const std::optional<double>& figure = result.*field;
    member(name, figure ? number_text(*figure) : "null");
  }
}

void require_keys(const JsonScanner& scanner, const std::set<std::string>& keys, const char* what,
                  const std::set<std::string>& needed) {
  for (const std::string& key : needed)
    if (!keys.contains(key)) scanner.fail(join(what, " has no member ", in_quotes(key)));
}

std::optional<double> nullable(JsonScanner& scanner, const char* what) {
  if (scanner.take_word("null")) return std::nullopt;
  const double value = scanner.decimal(what);
  if (value < 0) scanner.fail(join(what, " is negative"));
  return value;
}

BenchResult parse_result(JsonScanner& scanner) {
  BenchResult result;
  const auto keys = scanner.object("a result", [&](const std::string& key) {
    if (key == "contestant") {
      result.contestant = scanner.string();
    } else if (key == "causal") {
      result.point.causal = scanner.boolean("causal");
    } else if (const auto name = member_named(kNames, key)) {
      result.point.*name = scanner.string();
    } else if (const auto size = member_named(kSizes, key)) {
      result.point.*size = scanner.number(key.c_str());
    } else if (const auto time = member_named(kTimes, key)) {
      result.*time = scanner.decimal(key.c_str());
      if (!(result.*time > 0)) scanner.fail(join(key, " must be larger than 0"));
    } else if (const auto figure = member_named(kFigures, key)) {
      result.*figure = nullable(scanner, key.c_str());
    } else {
      scanner.skip();
    }
  });
  std::set<std::string> needed;
  each_member(result, [&](const char* name, const std::string&) { needed.insert(name); });
  require_keys(scanner, keys, "a result", needed);
  if (result.ms_low > result.ms || result.ms > result.ms_high)
    scanner.fail("a result's ms_low, ms and ms_high must be in this order, smallest first,");
  return result;
}

void parse_machine(JsonScanner& scanner, BenchFile& file) {
  const auto keys = scanner.object("machine", [&](const std::string& key) {
    if (key == "cpu") file.cpu = scanner.string();
    else if (key == "threads") file.threads = scanner.number("threads");
    else if (key != "gpu") scanner.skip();
    else if (!scanner.take_word("null")) file.gpu = scanner.string();
  });
  require_keys(scanner, keys, "machine", {"cpu", "threads", "gpu"});
}

void parse_ceilings(JsonScanner& scanner, BenchFile& file) {
  scanner.object("ceilings", [&](const std::string& device) {
    scanner.object("the ceilings of a device", [&](const std::string& name) {
      if (const std::optional<double> value = nullable(scanner, "a ceiling")) file.ceilings[device][name] = *value;
    });
  });
}

void parse_results(JsonScanner& scanner, BenchFile& file) {
  scanner.expect('[', "before the results");
  if (scanner.take(']')) return;
  do {
    file.results.push_back(parse_result(scanner));
  } while (scanner.take(','));
  scanner.expect(']', "or ',' after a result");
}

}  // namespace

std::string bench_json(const BenchFile& file) {
  std::string json = join("{\"format\": ", json_string(kFormat), ", \"command\": ", json_string(file.command),
                          ",\n \"version\": ", json_string(file.version), ", \"date\": ", json_string(file.date),
                          ",\n \"machine\": {\"cpu\": ", json_string(file.cpu), ", \"threads\": ", file.threads,
                          ", \"gpu\": ", file.gpu ? json_string(*file.gpu) : "null", "},\n \"ceilings\": {");
  const char* between = "";
  for (const auto& [device, ceilings] : file.ceilings) {
    json += join(std::exchange(between, ", "), json_string(device), ": {");
    const char* inner = "";
    for (const auto& [name, value] : ceilings)
      json += join(std::exchange(inner, ", "), json_string(name), ": ", number_text(value));
    json += "}";
  }
  json += "}";
  if (!file.interrupted.empty()) json += join(",\n \"interrupted\": ", json_string(file.interrupted));
  json += ",\n \"results\": [";
  between = "\n";
  for (const BenchResult& result : file.results) {
    json += join(std::exchange(between, ",\n"), "  {");
    const char* inner = "";
    each_member(result, [&](const char* name, const std::string& value) {
      json += join(std::exchange(inner, ", "), json_string(name), ": ", value);
    });
    json += "}";
  }
  return json + "\n]}\n";
}

std::string bench_csv(const BenchFile& file) {
  std::string head, rows;
  for (const BenchResult& result : file.results) {
    head.clear();
    each_member(result, [&](const char* name, const std::string& value) {
      head += join(head.empty() ? "" : ",", name);
      rows += join(rows.empty() || rows.back() == '\n' ? "" : ",", value == "null" ? "" : value);
    });
    rows += "\n";
  }
  return head + "\n" + rows;
}

BenchFile parse_bench_json(std::string_view text) {
  if (!files::is_utf8(text)) throw FileError("it is not UTF-8 text");
  JsonScanner scanner(text, "its JSON");
  BenchFile file;
  std::string format;
  const auto keys = scanner.object("the file", [&](const std::string& key) {
    if (key == "format") {
      format = scanner.string();
      if (format != kFormat)
        scanner.fail(join("its format is ", in_quotes(format), ", but only ", kFormat, " can be read;"));
    } else if (key == "command") {
      file.command = scanner.string();
    } else if (key == "version") {
      file.version = scanner.string();
    } else if (key == "date") {
      file.date = scanner.string();
    } else if (key == "machine") {
      parse_machine(scanner, file);
    } else if (key == "ceilings") {
      parse_ceilings(scanner, file);
    } else if (key == "results") {
      parse_results(scanner, file);
    } else {
      scanner.skip();
    }
  });
  require_keys(scanner, keys, "the file", {"format", "machine", "results"});
  if (!scanner.at_end()) scanner.fail("text after the object");
  return file;
}

BenchFile read_bench_file(const std::string& path) {
  return files::naming_file(path, [&] {
    files::InputFile file(path);
    if (file.left() > kLargestFile)
      throw FileError(join("it has ", file.left(), " bytes, and files of results have at most ", kLargestFile));
    std::string text(static_cast<size_t>(file.left()), '\0');
    file.read(text.data(), file.left());
    return parse_bench_json(text);
  });
}

}  // namespace cuflash::cli
