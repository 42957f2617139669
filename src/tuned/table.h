// The file of tuned choices: "tuned.txt" in the cache directory of compiled kernels, under the same rules. It is the
// user's own, written anew as a whole, and not believed before its checksum was seen to be right.
//
//   cuflash tuned 1
//   made by 0.1.0 <hash of the kernels' sources>
//   device NVIDIA H200, sm_90a, 132 multiprocessors
//   forward bf16 causal dim_qk=128 ... : hopper tile_k=80 ... : 4
//   checksum <SHA-256 of all lines before>
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tuned/choice.h"

namespace cuflash::tuned {

// Its name within the cache directory of compiled kernels, with which it is cleared.
inline constexpr const char* kTunedFile = "tuned.txt";

using Devices = std::map<std::string, Choices>;  // by name
size_t count(const Devices& devices);            // of choices

// "" and the choices, or why a text is not used.
std::string parse(std::string_view text, Devices& devices);
std::string text_of(const Devices& devices);

struct Table {
  Devices devices;
  std::string file;   // where it is or would be; "": there is no cache directory
  std::string state;  // "" where all is well, or why a file that is there is not used
};
// Reads the file of a directory. Makes neither.
Table read_table(const std::string& directory);

// Adds to the file of a directory, or makes both, for one device; of two processes none loses what the other adds. A kind
// whose choice is built_in is taken out. Returns "" or why it could not.
std::string write_choices(const std::string& directory, const std::string& device, const Choices& choices);

// Of this process: read once, from the cache directory. Empty with CUFLASH_TUNED=off; throws where that is neither on nor
// off.
const Table& table();
// Those of a device, which live as long as the process.
const Choices& choices_of(const std::string& device);

}  // namespace cuflash::tuned
