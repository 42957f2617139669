// Interprets the words of a flag. Each function throws UsageError, which names the flag, the value and what is allowed.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cuflash::cli {

using Words = std::vector<std::string>;

int64_t whole_number(std::string_view flag, std::string_view text, int64_t least = std::numeric_limits<int64_t>::min(),
                     int64_t most = std::numeric_limits<int64_t>::max());
uint64_t unsigned_number(std::string_view flag, std::string_view text);
double decimal(std::string_view flag, std::string_view text);  // including nan and inf: the command checks the range
bool yes_or_no(std::string_view flag, std::string_view text);  // 0 or 1, false or true

// Accepts every common spelling, in any case: fp16, float16, half, ...
DType dtype_named(std::string_view flag, std::string_view text);

std::string file_name(std::string_view flag, std::string_view text);
std::string arch_name(std::string_view flag, std::string_view text);    // "sm_90a"
std::string kernel_name(std::string_view flag, std::string_view text);  // as `cuflash pack --kernel` takes it

// Splits all words at commas.
Words parts_of(const Words& words);

// The sides of a window from "L,R" or from two words.
std::pair<int64_t, int64_t> window_sides(std::string_view flag, const Words& words);

// The value of one of these names.
template <class Value>
Value choice(std::string_view flag, std::string_view text, std::span<const std::pair<const char*, Value>> choices);

// "a", "a or b", "a, b or c"
std::string either(std::span<const std::string> names);
[[noreturn]] void refuse_choice(std::string_view flag, std::string_view text, std::span<const std::string> names);

template <class Value>
Value choice(std::string_view flag, std::string_view text, std::span<const std::pair<const char*, Value>> choices) {
  Words names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names.emplace_back(name);
  }
  refuse_choice(flag, text, names);
}

}  // namespace cuflash::cli
