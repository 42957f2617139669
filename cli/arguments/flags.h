// Adds flags to commands: CLI11 collects the words and writes the help, cli/arguments/values.h interprets the words. Flags
// that several commands share are defined here, so that each has one name and one meaning.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/arguments/arguments.h"
#include "cli/arguments/commands.h"
#include "cli/arguments/values.h"
#include "dtype.h"

namespace cuflash::cli {

template <class Value, size_t kCount>
using Choices = std::array<std::pair<const char*, Value>, kCount>;

inline constexpr Choices<Alignment, 2> kAlignments{
    {{"bottom-right", Alignment::bottom_right}, {"top-left", Alignment::top_left}}};
inline constexpr Choices<Device, 3> kDevices{
    {{"auto", Device::automatic}, {"cpu", Device::cpu}, {"cuda", Device::cuda}}};
inline constexpr Choices<Device, 2> kCheckedDevices{{{"cpu", Device::cpu}, {"cuda", Device::cuda}}};
inline constexpr Choices<Layout, 2> kLayouts{{{"bhsd", Layout::bhsd}, {"bshd", Layout::bshd}}};
inline constexpr const char* kDTypeNames = "f16|bf16|f32|f64";
inline constexpr const char* kCausal = "--causal";  // the only flag with an optional value; alone it means 1

// "-o,--out" is --out in messages.
inline std::string long_name(const std::string& flags) { return flags.substr(flags.rfind(',') + 1); }

// read is a function of cli/arguments/values.h, or one with the same form.
template <class Value, class Read>
CLI::Option* add_value(CLI::App& command, const std::string& flag, Value& value, Read read, const std::string& type,
                       const std::string& help) {
  const auto take = [&value, read, name = long_name(flag)](const CLI::results_t& words) {
    value = read(name, words.back());
    return true;
  };
  return command.add_option(flag, CLI::callback_t(take), help)->type_name(type);
}

template <class Value, class Read>
CLI::Option* add_list(CLI::App& command, const std::string& flag, std::vector<Value>& values, Read read,
                      const std::string& type, const std::string& help) {
  const auto take = [&values, read, name = long_name(flag)](const CLI::results_t& words) {
    values.clear();
    for (const std::string& part : parts_of(words)) values.push_back(read(name, part));
    return true;
  };
  return command.add_option(flag, CLI::callback_t(take), help)
      ->type_name(type)
      ->expected(CLI::detail::expected_max_vector_size);
}

struct Range {
  int64_t least = 1, most = std::numeric_limits<int64_t>::max();
};
inline auto whole_in(Range range) {
  return [=](const std::string& flag, const std::string& text) {
    return whole_number(flag, text, range.least, range.most);
  };
}

inline CLI::Option* add_size(CLI::App& command, const std::string& flag, int64_t& value, Range range,
                             const std::string& help) {
  return add_value(command, flag, value, whole_in(range), "N", help)->default_str(std::to_string(value));
}
inline CLI::Option* add_size(CLI::App& command, const std::string& flag, std::optional<int64_t>& value, Range range,
                             const std::string& help) {
  return add_value(command, flag, value, whole_in(range), "N", help);
}
inline CLI::Option* add_sizes(CLI::App& command, const std::string& flag, std::vector<int64_t>& values, Range range,
                              const std::string& help) {
  return add_list(command, flag, values, whole_in(range), "N,...", help);
}

template <class Value>
CLI::Option* add_decimal(CLI::App& command, const std::string& flag, Value& value, const std::string& help) {
  return add_value(command, flag, value, decimal, "X", help);
}
template <class Value>
CLI::Option* add_unsigned(CLI::App& command, const std::string& flag, Value& value, const std::string& help) {
  return add_value(command, flag, value, unsigned_number, "N", help);
}
inline CLI::Option* add_file(CLI::App& command, const std::string& flag, std::string& path, const std::string& help) {
  return add_value(command, flag, path, file_name, "FILE", help);
}
inline CLI::Option* add_arch(CLI::App& command, std::string& arch, const std::string& help) {
  return add_value(command, "--arch", arch, arch_name, "NAME", help);
}

template <class Value, size_t kCount>
auto one_of(const Choices<Value, kCount>& choices) {
  return [&choices](const std::string& flag, const std::string& text) {
    return choice<Value>(flag, text, std::span(choices));
  };
}
template <class Value, size_t kCount>
CLI::Option* add_choice(CLI::App& command, const std::string& flag, Value& value, const Choices<Value, kCount>& choices,
                        const std::string& help) {
  std::string names;
  for (const auto& [name, ignored] : choices) names += std::string(names.empty() ? "" : "|") + name;
  return add_value(command, flag, value, one_of(choices), names, help);
}

// One of these words.
inline auto word_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& flag, const std::string& text) {
    if (std::find(words.begin(), words.end(), text) == words.end()) refuse_choice(flag, text, words);
    return text;
  };
}

inline void add_threads(CLI::App& command, int32_t& threads) {
  const auto read = [](const std::string& flag, const std::string& text) {
    return static_cast<int32_t>(whole_number(flag, text, 1, std::numeric_limits<int32_t>::max()));
  };
  add_value(command, "--threads", threads, read, "N",
            "Threads (default: CUFLASH_NUM_THREADS, or every core this process may use)");
}

inline void add_causal(CLI::App& command, bool& causal) {
  add_value(command, kCausal, causal, yes_or_no, "[0|1]", "A query sees no key after its own position");
}

inline void add_window(CLI::App& command, Attention& attention) {
  const auto take = [&attention](const CLI::results_t& words) {
    std::tie(attention.window_left, attention.window_right) = window_sides("--window", words);
    return true;
  };
  command
      .add_option("--window", CLI::callback_t(take), "Keys visible to the left and to the right of a query; -1: all")
      ->type_name("L,R")
      ->expected(1, 2);
}

// The flags of a problem other than its lengths, or of a grid of problems that differ only in their lengths.
inline void add_problem(CLI::App& command, ExplainOptions& o, Range batch, Range heads) {
  add_size(command, "--batch", o.batch, batch, "Batch");
  add_size(command, "--heads", o.heads, heads, "Query heads");
  add_size(command, "--heads-k", o.heads_k, heads, "Key and value heads (default: the same)");
  add_size(command, "--head-dim", o.dim, {}, "Head size of queries and keys");
  add_size(command, "--head-dim-v", o.dim_v, {}, "Head size of values (default: the same)");
  add_value(command, "--dtype", o.dtype, dtype_named, kDTypeNames, "Type of the tensors")
      ->default_str(std::string(name_of(o.dtype)));
}

// Describes the commands for cli/arguments/arguments.h.
inline CommandShape shape_of(const CLI::App& app) {
  CommandShape shape{app.get_name()};
  for (const CLI::Option* option : app.get_options()) {
    FlagShape flag;
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    flag.takes_value = option->get_items_expected_max() > 0;
    flag.is_list = option->get_items_expected_max() > 1;
    if (flag.names.front() == kCausal) flag.value_if_alone = "1";
    shape.flags.push_back(std::move(flag));
  }
  for (const CLI::App* command : app.get_subcommands({})) shape.commands.push_back(shape_of(*command));
  return shape;
}

}  // namespace cuflash::cli
