// A reader under attack. Each *_fuzz.cpp defines these functions for one reader; libfuzzer.cpp and driver.cpp are two
// programs around them, one that searches for minutes, guided by coverage, and one that every test run can afford.
#pragma once

#include <string>
#include <vector>

namespace cuflash::fuzz {

// Small inputs to begin with: each thing that the format can say, once. What a search has broken belongs here too.
std::vector<std::string> seeds();

// Pieces of text that mean something to the reader.
std::vector<std::string> words();

// Makes the lengths in an input fit what stands there, so that a change to it is seen by more than the first check.
void repair(std::string& input);

// Reads the input and requires of the outcome what must hold for any input. True where the reader took it.
bool check(const std::string& input);

}  // namespace cuflash::fuzz
