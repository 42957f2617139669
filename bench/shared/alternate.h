// Timing of calls on this machine's processor.
#pragma once

#include <functional>
#include <vector>

namespace cuflash::bench {

using Run = std::function<void()>;

// Seconds per run of each contestant, in alternation: at least three rounds, and as many as fit into the time. A short run
// is repeated within a round, so that reading the clock does not count.
std::vector<std::vector<double>> alternate_times(const std::vector<Run>& contestants, double seconds);

}  // namespace cuflash::bench
