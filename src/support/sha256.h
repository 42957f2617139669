// SHA-256 (FIPS 180-4): keys and checksums of compiled kernels.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace cuflash {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view data);
std::string hex(const Digest& digest);

}  // namespace cuflash
