// UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cuflash::files {

// Every byte belongs to a character; no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

void append_utf8(std::string& text, uint32_t code_point);

}  // namespace cuflash::files
