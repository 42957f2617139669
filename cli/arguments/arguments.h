// Reads the command line before CLI11 does. Misspelt commands and flags, flags without a value and older names each get
// one sentence here; CLI11 would take the next flag for the value.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cuflash::cli {

struct FlagShape {
  std::vector<std::string> names;  // "--out", "-o"
  bool takes_value = false;
  bool is_list = false;          // takes several values, and may be repeated
  std::string value_if_alone{};  // the value of a flag that was given without one
};

struct CommandShape {
  std::string name;  // "cuflash", "bench"
  std::vector<FlagShape> flags{};
  std::vector<CommandShape> commands{};
};

struct Arguments {
  std::vector<std::string> words;
  std::string command;  // the command they belong to: "cuflash bench"
  std::vector<std::pair<std::string, std::string>>
      renamed{};  // older and newer name of each flag given by its older name
};

// Throws UsageError.
Arguments read_arguments(const CommandShape& program, const std::vector<std::string>& typed);

}  // namespace cuflash::cli
