// The interface of a fuzz target. Each *_fuzz.cpp defines these functions for one reader. libfuzzer.cpp searches for minutes,
// guided by coverage; driver.cpp is fast enough for every test run.
#pragma once

#include <string>
#include <vector>

namespace cuflash::fuzz {

// Small inputs to start from, which cover each feature of the format once. Inputs that broke the reader belong here too.
std::vector<std::string> seeds();

// Tokens that the reader knows.
std::vector<std::string> words();

// Corrects the lengths in an input, so that a mutated input gets past the first check.
void repair(std::string& input);

// Reads the input and checks the properties that hold for any input. Returns whether the reader accepted it.
bool check(const std::string& input);

}  // namespace cuflash::fuzz
