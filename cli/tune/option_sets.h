// Sets of options for which `cuflash tune` measures problems.
#pragma once

#include <string>
#include <vector>

namespace cuflash::cli {

// Reads "softcap,alibi" as bits of tuned::Options; "none" is the empty set. Throws UsageError.
int option_set(const std::string& flag, const std::string& text);

// "softcap,alibi", or "none".
std::string option_set_text(int options);

// Every option alone, and the usual pairs, without sinks: a sink plays no part in the loop over the keys, so the
// built-in tables do not distinguish it.
std::vector<int> usual_option_sets();

}  // namespace cuflash::cli
