// The problems of `cuflash io` and `cuflash memory`.
#pragma once

#include <vector>

#include "cli/arguments/commands.h"
#include "cli/sketch.h"

namespace cuflash::cli {

// One length, forward (with LSE, as training needs it) and backward (with every gradient).
struct GridPoint {
  ExplainOptions forward, backward;
};

// Throws UsageError for problems too large to be counted.
std::vector<GridPoint> points_of(const GridOptions& options);

// "1024", or "1x1024" if the numbers of queries and keys differ.
std::string length_text(int64_t len_q, int64_t len_k);

// The properties that all points share: "bf16, batch 1, 16 heads, head size 128, causal".
std::string words_of(const GridOptions& options);
// The properties that all points share, as members of a JSON object.
std::string json_of(const GridOptions& options);

// Writes the JSON if it was requested.
void write_json(const GridOptions& options, const std::string& text);

}  // namespace cuflash::cli
