// What a misspelt word may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cuflash::cli {

// The least number of letters that are inserted, left out, replaced or swapped with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b);

// The known word that is nearest, the first one of several; "" where none is near enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace cuflash::cli
