// Guesses the intended word behind a misspelling.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cuflash::cli {

// The smallest number of letters to insert, delete, replace or swap with a neighbour.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest known word, the first of several; if none is near enough, the longest one that is a part of the word; "" if
// there is neither.
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace cuflash::cli
