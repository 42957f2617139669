#include "cli/tune/option_sets.h"

#include "cli/arguments/exit.h"
#include "support/text.h"
#include "tuned/choice.h"

namespace cuflash::cli {

constexpr const char* kNoOption = "none";

int option_set(const std::string& flag, const std::string& text) {
  if (text == kNoOption) return 0;
  if (const std::optional<int64_t> options = tuned::parse_options(text)) return static_cast<int>(*options);
  throw UsageError(join(flag, " is ", in_quotes(text), ", must be ", kNoOption, " or some of ",
                        tuned::options_text(~int64_t{0}), ", with commas between"));
}

std::string option_set_text(int options) { return options == 0 ? kNoOption : tuned::options_text(options); }

std::vector<int> usual_option_sets() {
  using namespace tuned;
  return {kSoftcap,          kAlibi,           kBias,
          kMaskTensor,       kDropout,         kSoftcap | kAlibi,
          kAlibi | kDropout, kBias | kDropout, kMaskTensor | kDropout};
}

}  // namespace cuflash::cli
