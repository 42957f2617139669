#include "cli/arguments/arguments.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <utility>

#include "cli/arguments/exit.h"
#include "cli/arguments/nearest.h"
#include "cli/arguments/values.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

// Names of flags in an earlier version, which scripts still use. --seq-q without --seq-k was the length of the keys as
// well, which is what --len means now.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOlderNames{{{"--seq-q", "--len"},
                                                                                    {"--seq-k", "--len-k"},
                                                                                    {"--dim", "--head-dim"},
                                                                                    {"--dim-v", "--head-dim-v"},
                                                                                    {"--max-seq", "--max-len"}}};

// "--len" and "-o"; neither "-1,0" nor "-".
bool is_flag(const std::string& word) {
  const size_t letter = word.find_first_not_of('-');
  return (letter == 1 || letter == 2) && std::isalpha(static_cast<unsigned char>(word[letter])) != 0;
}

const FlagShape* flag_named(const CommandShape& command, std::string_view name) {
  for (const FlagShape& flag : command.flags)
    if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
  return nullptr;
}

Words names_of(const std::vector<CommandShape>& commands) {
  Words names;
  for (const CommandShape& command : commands) names.push_back(command.name);
  return names;
}

class Reader {
 public:
  Reader(const CommandShape& program, const Words& typed)
      : program_(program), command_(&program), typed_(typed), path_(program.name) {}

  Arguments read() {
    while (at_ < typed_.size()) {
      const std::string& word = typed_[at_++];
      if (is_flag(word)) read_flag(word);
      else read_other(word);
    }
    if (!command_->commands.empty() && !asks_for_help_) refuse_no_command();
    return {std::move(words_), path_, std::move(renamed_)};
  }

 private:
  void read_flag(const std::string& word) {
    const bool is_long = word.starts_with("--");
    const size_t end = is_long ? word.find('=') : 2;
    const std::string typed_name = word.substr(0, end);
    const bool has_value = end < word.size();
    std::string name = newer_name(typed_name);
    const FlagShape* flag = flag_named(*command_, name);
    if (!flag) refuse_flag(typed_name);
    asks_for_help_ = asks_for_help_ || name == "--help" || name == "-h" || name == "--version";
    require_once(*flag, typed_name);
    if (has_value && !flag->takes_value)
      throw UsageError(
          join(name, " takes no value, but got ", in_quotes(word.substr(end + is_long)), "; give it without one"));
    list_ = flag->is_list ? flag : nullptr;
    if (has_value && end + is_long == word.size()) {
      words_.insert(words_.end(), {name, ""});  // CLI11 sees no value after a trailing "="
    } else if (has_value || !flag->takes_value) {
      words_.push_back(has_value ? name + word.substr(end) : name);
    } else if (at_ < typed_.size() && !is_flag(typed_[at_])) {
      words_.insert(words_.end(), {name, typed_[at_++]});
    } else if (!flag->value_if_alone.empty()) {
      words_.push_back(join(name, "=", flag->value_if_alone));
    } else {
      refuse_no_value(typed_name);
    }
  }

  // A command, or one more value of a list.
  void read_other(const std::string& word) {
    for (const CommandShape& command : command_->commands) {
      if (command.name != word) continue;
      command_ = &command, path_ += " " + word, list_ = nullptr;
      words_.push_back(word);
      return;
    }
    if (!command_->commands.empty()) refuse_command(word);
    if (!list_)
      throw UsageError(join(path_, " takes only flags, but got ", in_quotes(word), "; ", path_, " --help lists them"));
    words_.push_back(word);
  }

  std::string newer_name(const std::string& name) {
    if (flag_named(*command_, name)) return name;
    for (const auto& [older, newer] : kOlderNames) {
      if (name != older || !flag_named(*command_, newer)) continue;
      renamed_.emplace_back(older, newer);
      return std::string(newer);
    }
    return name;
  }

  void require_once(const FlagShape& flag, const std::string& name) {
    const auto [before, is_first] = seen_.emplace(&flag, name);
    if (is_first || flag.is_list) return;
    if (before->second == name) throw UsageError(join(name, " was given twice; give it once"));
    throw UsageError(join(before->second, " and ", name, " are the same flag; give it once"));
  }

  [[noreturn]] void refuse_flag(const std::string& name) const {
    Words known;
    for (const FlagShape& flag : command_->flags) known.insert(known.end(), flag.names.begin(), flag.names.end());
    const std::string meant = nearest(name, known);
    throw UsageError(
        join("unknown flag ", in_quotes(name), " of ", path_, "; ",
             meant.empty() ? join(path_, " --help lists its flags") : join("did you mean '", meant, "'?")));
  }

  [[noreturn]] void refuse_command(const std::string& word) const {
    Words known = names_of(command_->commands);
    if (command_ == &program_) known.insert(known.end(), {"--help", "--version"});
    const std::string meant = nearest(word, known);
    throw UsageError(join("unknown command ", in_quotes(word), command_ == &program_ ? "" : " of " + path_, "; ",
                          meant.empty() ? join("it may be ", either(names_of(command_->commands)))
                                        : join("did you mean '", meant, "'?")));
  }

  [[noreturn]] void refuse_no_command() const {
    throw UsageError(join(command_ == &program_ ? "a command is needed: " : path_ + " needs one of: ",
                          either(names_of(command_->commands)), " (", path_, " --help says more)"));
  }

  [[noreturn]] void refuse_no_value(const std::string& name) const {
    if (at_ == typed_.size()) throw UsageError(join(name, " needs a value; ", path_, " --help says which"));
    throw UsageError(
        join(name, " needs a value, but the flag ", in_quotes(typed_[at_]), " follows; ", path_, " --help says which"));
  }

  const CommandShape& program_;
  const CommandShape* command_;
  const Words& typed_;
  size_t at_ = 0;
  std::string path_;
  Words words_;
  std::vector<std::pair<std::string, std::string>> renamed_;
  std::map<const FlagShape*, std::string> seen_;  // flags so far, with the name that the user typed
  const FlagShape* list_ = nullptr;               // the previous flag, if it takes more values
  bool asks_for_help_ = false;
};

}  // namespace

Arguments read_arguments(const CommandShape& program, const Words& typed) { return Reader(program, typed).read(); }

}  // namespace cuflash::cli
