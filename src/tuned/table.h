// The file of tuned choices: "tuned.txt" in the cache directory of compiled kernels, under the same rules. It is
// private to the user, always replaced as a whole, and used only if its checksum is right.
//
//   cuflash tuned 2
//   made by 0.1.0 <hash of the kernels' sources>
//   device NVIDIA H200, sm_90a, 132 multiprocessors
//   forward bf16 causal dim_qk=128 ... : sm90 tile_k=80 ... : 4
//   checksum <SHA-256 of all lines before>
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tuned/choice.h"

namespace cuflash::tuned {

// Name of the file in the cache directory of compiled kernels; clearing that cache removes it, too.
inline constexpr const char* kTunedFile = "tuned.txt";

using Devices = std::map<std::string, Choices>;  // choices by the name of the device
size_t count(const Devices& devices);            // number of choices

// Returns "" and the choices, or why the text cannot be used.
std::string parse(std::string_view text, Devices& devices);
std::string text_of(const Devices& devices);

struct Table {
  Devices devices;
  std::string file;   // its path, whether or not it exists; "": there is no cache directory
  std::string state;  // why an existing file is not used, or ""
};
// Reads the file of a directory. Creates neither.
Table read_table(const std::string& directory);

// Adds choices for one device to the file of a directory, and creates both if needed. Concurrent processes do not lose
// each other's choices. A kind whose choice has no family is removed. Returns "" or what failed.
std::string write_choices(const std::string& directory, const std::string& device, const Choices& choices);

// The table of this process, read once from the cache directory. Empty with CUFLASH_TUNED=off; throws if that variable
// is neither on nor off.
const Table& table();
// The choices of a device, which live as long as the process.
const Choices& choices_of(const std::string& device);

}  // namespace cuflash::tuned
