// Timing of calls on this machine's processor.
#pragma once

#include <functional>
#include <vector>

namespace cuflash::bench {

using Run = std::function<void()>;

// Seconds of one run of each contestant, turn by turn: at least three turns each, and as many as fit into the time.
// A short run is repeated within its turn, so that reading the clock does not count.
std::vector<std::vector<double>> turn_times(const std::vector<Run>& contestants, double seconds);

}  // namespace cuflash::bench
