// The words of the command line before CLI11 reads them: misspelt commands and flags, flags without their value and older
// names are answered here, in one sentence each, where CLI11 would take the next flag for the value.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cuflash::cli {

struct FlagShape {
  std::vector<std::string> names;  // "--out", "-o"
  bool takes_value = false;
  bool is_list = false;          // may be given again, and takes several values
  std::string value_if_alone{};  // of one whose value may be left out
};

struct CommandShape {
  std::string name;  // "cuflash", "bench"
  std::vector<FlagShape> flags{};
  std::vector<CommandShape> commands{};
};

struct Arguments {
  std::vector<std::string> words;
  std::string command;                                         // that they are for: "cuflash bench"
  std::vector<std::pair<std::string, std::string>> renamed{};  // older and newer names of flags that had the older one
};

// Throws UsageError.
Arguments read_arguments(const CommandShape& program, const std::vector<std::string>& typed);

}  // namespace cuflash::cli
