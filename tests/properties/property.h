// A property over random cases. The body takes the choices that make a case, and returns "" or what is wrong.
//
// With RapidCheck a failing sequence of choices is shrunk to a simpler one; without it the cases come from seeds. Either
// way CUFLASH_TEST_SEED chooses them, and CUFLASH_TEST_SCALE multiplies how many there are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "check/cases/choices.h"

namespace cuflash::test {

uint64_t test_seed();
int scaled(int cases);

using Body = std::function<std::string(check::Choices&)>;
void property(const std::string& name, int cases, const Body& body);

}  // namespace cuflash::test
