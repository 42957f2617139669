#include "cli/arguments/values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <map>

#include "cli/arguments/exit.h"
#include "cuda/driver/arch.h"
#include "cuda/families/registry.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

// Parses the whole text as a number; the error says what is allowed.
template <class Number>
Number number(std::string_view flag, std::string_view text, const std::string& allowed) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stopped == end) return value;
  throw UsageError(join(flag, " is ", in_quotes(text), ", must be ", allowed));
}

// "a whole number from 1 to 256"
std::string range_text(int64_t least, int64_t most) {
  using Limits = std::numeric_limits<int64_t>;
  if (least == Limits::min() && most == Limits::max()) return "a whole number below 2^63";
  return most == Limits::max() ? join("a whole number from ", least, " to 2^63 - 1")
                               : join("a whole number from ", least, " to ", most);
}

// Turns the library's error into one that names the flag.
template <class Read>
std::string checked(std::string_view text, Read read) {
  try {
    read(text);
    return std::string(text);
  } catch (const FlashAttentionError& error) {
    throw UsageError(join("--", error.what()));
  }
}

const std::map<std::string, DType, std::less<>> kSpellings{
    {"f64", DType::f64},    {"fp64", DType::f64},  {"float64", DType::f64},  {"double", DType::f64},
    {"f32", DType::f32},    {"fp32", DType::f32},  {"float32", DType::f32},  {"float", DType::f32},
    {"single", DType::f32}, {"f16", DType::f16},   {"fp16", DType::f16},     {"float16", DType::f16},
    {"half", DType::f16},   {"bf16", DType::bf16}, {"bfloat16", DType::bf16}};

}  // namespace

int64_t whole_number(std::string_view flag, std::string_view text, int64_t least, int64_t most) {
  const std::string allowed = range_text(least, most);
  const auto value = number<int64_t>(flag, text, allowed);
  if (value < least || value > most) throw UsageError(join(flag, " is ", value, ", must be ", allowed));
  return value;
}

uint64_t unsigned_number(std::string_view flag, std::string_view text) {
  return number<uint64_t>(flag, text, "a whole number from 0 to 2^64 - 1");
}

double decimal(std::string_view flag, std::string_view text) { return number<double>(flag, text, "a number"); }

bool yes_or_no(std::string_view flag, std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  refuse_choice(flag, text, std::array<std::string, 2>{"0", "1"});
}

DType dtype_named(std::string_view flag, std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = kSpellings.find(small);
  if (found != kSpellings.end()) return found->second;
  throw UsageError(
      join(flag, " is ", in_quotes(text),
           ", must be f16 (or fp16, float16, half), bf16 (bfloat16), f32 (fp32, float32, float, single) or "
           "f64 (fp64, float64, double)"));
}

std::string file_name(std::string_view flag, std::string_view text) {
  if (text.empty()) throw UsageError(join(flag, " is '', must be the name of a file"));
  return std::string(text);
}

std::string arch_name(std::string_view, std::string_view text) { return checked(text, cuda::arch_named); }

std::string kernel_name(std::string_view, std::string_view text) { return checked(text, cuda::kernel_named); }

Words parts_of(const Words& words) {
  Words parts;
  for (const std::string& word : words) {
    size_t begin = 0, comma = 0;
    for (; (comma = word.find(',', begin)) != std::string::npos; begin = comma + 1)
      parts.push_back(word.substr(begin, comma - begin));
    parts.push_back(word.substr(begin));
  }
  return parts;
}

std::pair<int64_t, int64_t> window_sides(std::string_view flag, const Words& words) {
  const Words sides = parts_of(words);
  if (sides.size() == 2) return {whole_number(flag, sides[0]), whole_number(flag, sides[1])};
  std::string text;
  for (const std::string& side : sides) text += join(text.empty() ? "" : ",", side);
  throw UsageError(
      join(flag, " is ", in_quotes(text),
           ", must be two numbers L,R: how many keys a query sees before and after its own position, or -1 "
           "for all"));
}

std::string either(std::span<const std::string> names) {
  std::string text;
  for (size_t n = 0; n < names.size(); ++n) text += join(n == 0 ? "" : n + 1 < names.size() ? ", " : " or ", names[n]);
  return text;
}

void refuse_choice(std::string_view flag, std::string_view text, std::span<const std::string> names) {
  throw UsageError(join(flag, " is ", in_quotes(text), ", must be ", either(names)));
}

}  // namespace cuflash::cli
