// Words for messages and tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"

namespace cuflash::cli {

std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 8, 128, 64]"
std::string bytes_text(double bytes);                       // "1.5 MiB"
std::string fixed(double value, int digits);
std::string system_message(int error);  // of errno

// The beginning of a text of unknown origin, safe to print to a terminal. (Under the name "quoted" a call with a string
// would find std::quoted, which prints escape codes.)
std::string in_quotes(std::string_view text);

}  // namespace cuflash::cli
