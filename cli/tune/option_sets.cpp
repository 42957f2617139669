#include "cli/tune/option_sets.h"

#include <algorithm>

#include "cli/arguments/exit.h"
#include "cli/arguments/values.h"
#include "cli/bench/grid.h"
#include "support/text.h"

namespace cuflash::cli {

constexpr const char* kNoOption = "none";

int option_set(const std::string& flag, const std::string& text) {
  if (text == kNoOption) return 0;
  int options = 0;
  for (const std::string& word : parts_of({text})) {
    const auto* const found = std::find_if(kTunedOptions.begin(), kTunedOptions.end(),
                                           [&](const auto& option) { return word == option.first; });
    if (found == kTunedOptions.end()) {
      std::string names;
      for (const auto& [name, bit] : kTunedOptions) names += join(name, ", ");
      throw UsageError(join(flag, " is ", in_quotes(text), ", must be ", kNoOption, " or a set of ", names,
                            "with a comma between two"));
    }
    options |= static_cast<int>(found->second);
  }
  return options;
}

std::string option_set_text(int options) {
  std::string text;
  for (const auto& [name, bit] : kTunedOptions)
    if ((options & bit) != 0) text += join(text.empty() ? "" : ",", name);
  return text.empty() ? kNoOption : text;
}

std::vector<int> usual_option_sets() {
  using namespace tuned;
  return {kSoftcap,          kAlibi,           kBias,
          kMaskTensor,       kDropout,         kSoftcap | kAlibi,
          kAlibi | kDropout, kBias | kDropout, kMaskTensor | kDropout};
}

}  // namespace cuflash::cli
